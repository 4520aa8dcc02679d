// Chapters of the lesson. A chapter with `figure` and `steps` is scroll-synced; `play` and `second` are interactive
// figures; `custom` makes the rest. A text is a string, or a function that makes a node (a formula).
import { bigrams, spectrum } from "./figures/bigrams.js";
import { explorer } from "./figures/explorer.js";
import { fitting } from "./figures/fitting.js";
import { logits } from "./figures/logits.js";
import { lookup } from "./figures/lookup.js";
import { realTokens } from "./figures/real_tokens.js";
import { stream } from "./figures/stream.js";
import { logitFormula, lookupFormula, partsFormula, savingFormula, semidefiniteFormula, softmaxFormula, streamFormula, symmetryFormula } from "./formulas.js";
import { choosing, heldOutByForm, missedByRank, pricing, purposes, sources, who } from "./panels.js";
import { check } from "./questions.js";
import { QUIZ } from "./quiz.js";

export const chapters = ({ models, bands }) => [
  {
    id: "rows",
    title: "The embedding: one row per word",
    figure: lookup,
    steps: [
      { title: "A vocabulary is a numbered list", text: ["A model sees token ids, not words: *New* is 0, *York* is 1. The simplest vector for “word 1” has zeros everywhere and a single one: a *one-hot* vector.", "Select a word to see its vector. (Real tokens are parts of words; here each word is one token.)"] },
      { title: "One-hot times a matrix picks a row", text: ["The *embedding* E has one row per word. A one-hot vector times E multiplies every row by zero except one. The result is that row.", lookupFormula, "Edit any number of E; the figure is recomputed."] },
      { title: "So it is a lookup", text: ["The product is always a row, so programs just read that row. The embedding is a lookup table of V × D numbers: vocabulary times width.", "The LM head has the same shape."] },
    ],
  },
  {
    id: "logits",
    title: "The LM head: a dot product per word",
    figure: logits,
    steps: [
      { title: "A logit for every word", text: ["After all layers the model has one hidden state h of width D and needs a probability for each next word. The *LM head* W takes the dot product of h with one row per word. These scores are the *logits*.", logitFormula, "A logit is large when h points in the direction of the word’s row."] },
      { title: "Logits become probabilities", text: ["*Softmax* takes e to the power of each logit and divides by the sum. Only differences between logits matter: adding 5 to all of them changes nothing.", softmaxFormula] },
      { title: "The same shape again", text: ["One row of width D per word: the LM head W is V × D, exactly like E. So they can be the same matrix. Then the model is *tied*; with two matrices it is *untied*.", "The rest of this page is about that choice."] },
    ],
  },
  {
    id: "purposes",
    title: "Two matrices, two purposes",
    intro: ["The shapes are equal; the jobs are not. A row of the embedding is read by the layers above it. A row of the LM head is compared with what the layers produce."],
    custom: purposes,
  },
  {
    id: "stream",
    title: "The direct path",
    figure: stream,
    steps: [
      { title: "Layers add, they do not replace", text: ["The *residual stream* starts as the word’s row of E, and each attention and MLP block adds a vector to it. The LM head takes the dot product with the sum, so every logit is a sum of parts ([Geva et al. 2021](arXiv:2012.14913) read the layers that way).", streamFormula, partsFormula] },
      { title: "One part is always there", text: ["The first part is the embedding, directly to the LM head: `E·Wᵀ`. It sees one word and scores the next: a *bigram* model in the weights. A model without layers has nothing else.", "What can it represent if W is E?"] },
    ],
    ask: { id: "direct", ask: "With tied weights and no layers, which word gets a high logit after *York*?", right: 1,
      answers: [
        ["Whatever usually follows York", "That would need bigram statistics in row *York* of `E·Eᵀ`. The row has the dot products of York’s row with every row, including its own."],
        ["York itself, and words whose rows look like York’s", "The logit of York after York is the squared norm of York’s row. No row is more similar to it, so a word’s own logit is among the highest."],
        ["All words the same", "Only if all rows were orthogonal to York’s."],
      ], then: "The layers of a tied model must cancel this before the LM head reads the residual stream." },
  },
  {
    id: "direction",
    title: "Bigrams are not symmetric",
    figure: bigrams,
    steps: [
      { title: "Count bigrams", text: ["Count each pair of adjacent words in a small text. The row is the current word, the column the next word. Edit the text to update the counts."] },
      { title: "The counts are not symmetric", text: ["*York* follows *New*; *New* does not follow *York*. The transposed matrix is the text read backwards.", "So the direct path should not be symmetric."] },
    ],
  },
  {
    id: "symmetry",
    title: "E·Eᵀ is always symmetric",
    intro: ["If W is E, the logit of *b* after *a* is row a times row b. The logit of *a* after *b* is row b times row a: the same number.", symmetryFormula, "Try to change that."],
    ask: { id: "symmetry", ask: "Can you choose E so that *New → York* is high and *York → New* is low, with the direct path E·Eᵀ?", right: 2,
      answers: [
        ["Yes, with enough columns", "More columns do not help: row a times row b equals row b times row a at every width."],
        ["Yes, with negative numbers", "Negative numbers change both logits together: they are the same product."],
        ["No, for no E at all", "A dot product is symmetric: `(E·Eᵀ)ᵀ = E·Eᵀ`."],
      ] },
    play: explorer,
    after: [
      "Symmetry is not the main constraint. Look at the other two checks above: with E·Eᵀ *the logit of a word after itself is never negative*, and *no eigenvalue is negative*, whatever you type. E·Eᵀ is *positive semidefinite*: for any vector x, xᵀE·Eᵀx is the squared norm of Eᵀx.",
      semidefiniteFormula,
      "Select `E·diag(1,−1)·Eᵀ`: it is still symmetric, but has negative eigenvalues, and a word can have a negative logit after itself. In real text most words almost never follow themselves.",
    ],
    second: spectrum,
    close: ["The same holds on a real text (1,000 words, 387k tokens of prose): the antisymmetric part has 16.9% of the energy of the PMI matrix, but 72.8% of the symmetric part is in negative eigenvalues. Semidefiniteness, not symmetry, is what a tied direct path pays for.", missedByRank],
  },
  {
    id: "untie",
    title: "A second matrix, or one small map",
    intro: [
      "Untied, the direct path is E·Wᵀ: any matrix of rank d, at the price of a second matrix. A d × d map M between the two uses of the same matrix is cheaper: E·M·Eᵀ. So is an MLP, which every transformer layer has.",
      "Train them on the text above, in this page. Blue forms are tied; orange is untied.",
    ],
    ask: { id: "map", ask: "A d × d map adds 9 numbers at d = 3. How much of the gap between E·Eᵀ and E·Wᵀ will it close?", right: 2,
      answers: [
        ["Almost none: it is still tied", "One matrix for both uses is not what costs the most. Train to see."],
        ["About half", "More. Train to see."],
        ["Nearly all", "With M the direct path can be any matrix of rank d in the span of E: asymmetric, with eigenvalues of either sign."],
      ] },
    play: fitting,
    close: [
      "On the real text of 1,000 words it is the same: one small matrix closes 83–98% of the gap, depending on the width.",
      heldOutByForm,
      "So these limits do not apply to a deep model: its layers can learn that map. An explicit linear map before a tied LM head matches or beats an untied one ([Gulordava et al. 2018](#sources)). A limit that both kinds have is the rank: with D columns the logits of all contexts form a matrix of rank D at most ([Yang et al. 2018](arXiv:1711.03953)).",
    ],
  },
  {
    id: "real",
    title: "The same on real tokens",
    intro: [
      "So far the words were toys. These are the same products on a few dozen tokens of real models: a tied one, an untied one, and a pair trained on the same text with and without tying.",
      "Without the final norm the tied path is E·Eᵀ, symmetric and positive semidefinite, in every model of any size. With the norm, each row of E is rescaled first, and the numbers are no longer symmetric.",
    ],
    play: realTokens,
    close: ["Compare *New → York* with *York → New* in the large models, *my → lord* with *lord → my* in the small ones. In a tied model both are the same number before the norm, so its layers must learn the direction. An untied model can store it in the two matrices, and the small one does: *lord → my* is far below *my → lord*."],
  },
  {
    id: "price",
    title: "Parameter count",
    intro: ["Tying saves exactly one matrix of vocabulary × width.", savingFormula],
    custom: () => pricing(models),
  },
  {
    id: "who",
    title: "Who ties",
    intro: ["It depends on the share of the model that a separate LM head would be. Each cell is one known model; rows are ranges of that share."],
    custom: () => who(models, bands),
  },
  {
    id: "choose",
    title: "To tie or not to tie",
    intro: ["What decides, in one table."],
    custom: choosing,
  },
  {
    id: "check",
    title: "Quiz",
    intro: ["Six questions, with an explanation for every answer."],
    custom: () => check(QUIZ),
  },
  {
    id: "sources",
    title: "Sources",
    intro: ["Where the claims and numbers of this page come from."],
    custom: sources,
  },
];
