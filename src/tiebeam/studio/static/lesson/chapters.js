// Chapters of the lesson. A chapter with `figure` and `steps` is scroll-synced; `play` is an interactive figure.
import { scatter, shareBars } from "../lib/charts.js";
import { h, media, prose, scroller, tieWord } from "../lib/dom.js";
import { grouped, human, percent } from "../lib/numbers.js";
import { bigrams, explorer, fitting, logits, lookup, spectrum, stream } from "./figures.js";
import { check } from "./questions.js";

export const chapters = ({ models, bands }) => [
  {
    id: "rows",
    title: "The embedding: one row per word",
    figure: lookup,
    steps: [
      { title: "A vocabulary is a numbered list", text: ["A model sees token ids, not words: *New* is 0, *York* is 1. The simplest vector for “word 1” has zeros everywhere and a single one: a *one-hot* vector.", "Select a word to see its vector. (Real tokens are parts of words; here each word is one token.)"] },
      { title: "One-hot times a matrix picks a row", text: ["The *embedding* E has one row per word. A one-hot vector times E multiplies every row by zero except one. The result is that row.", "Edit any number of E; the figure is recomputed."] },
      { title: "So it is a lookup", text: ["The product is always a row, so programs just read that row. The embedding is a lookup table of V × D numbers: vocabulary times width.", "The LM head has the same shape."] },
    ],
  },
  {
    id: "logits",
    title: "The LM head: a dot product per word",
    figure: logits,
    steps: [
      { title: "A logit for every word", text: ["After all layers the model has one hidden state h of width D and needs a probability for each next word. The *LM head* W takes the dot product of h with one row per word. These scores are the *logits*.", "A logit is large when h points in the direction of the word’s row."] },
      { title: "Logits become probabilities", text: ["*Softmax* takes e to the power of each logit and divides by the sum. Only differences between logits matter: adding 5 to all of them changes nothing."] },
      { title: "The same shape again", text: ["One row of width D per word: the LM head W is V × D, exactly like E. So they can be the same matrix. Then the model is *tied*; with two matrices it is *untied*.", "The rest of this page is about that choice."] },
    ],
  },
  {
    id: "stream",
    title: "The direct path",
    figure: stream,
    steps: [
      { title: "Layers add, they do not replace", text: ["The *residual stream* starts as the word’s row of E, and each attention and MLP block adds a vector to it. The LM head takes the dot product with the sum, so every logit is a sum of parts."] },
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
    intro: ["If W is E, the logit of *b* after *a* is row a times row b. The logit of *a* after *b* is row b times row a: the same number. Try to change that."],
    ask: { id: "symmetry", ask: "Can you choose E so that *New → York* is high and *York → New* is low, with the direct path E·Eᵀ?", right: 2,
      answers: [
        ["Yes, with enough columns", "More columns do not help: row a times row b equals row b times row a at every width."],
        ["Yes, with negative numbers", "Negative numbers change both logits together: they are the same product."],
        ["No, for no E at all", "A dot product is symmetric: `(E·Eᵀ)ᵀ = E·Eᵀ`."],
      ] },
    play: explorer,
    after: [
      "Symmetry is not the main constraint. Look at the other two checks above: with E·Eᵀ *the logit of a word after itself is never negative*, and *no eigenvalue is negative*, whatever you type. E·Eᵀ is *positive semidefinite*: for any vector x, xᵀE·Eᵀx is the squared norm of Eᵀx.",
      "Select `E·diag(1,−1)·Eᵀ`: it is still symmetric, but has negative eigenvalues, and a word can have a negative logit after itself. In real text most words almost never follow themselves.",
    ],
    second: spectrum,
    close: ["On a real text (1,000 words, 387k tokens of prose) the antisymmetric part has 16.9% of the energy of the PMI matrix, but 72.8% of the symmetric part is in negative eigenvalues. The best approximation of rank 64 misses 15.2% if it may be any matrix, 24.9% if it must be symmetric, and *80.1%* if it must be positive semidefinite."],
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
      "On the real text of 1,000 words at d = 64, held-out loss in nats: E·Eᵀ 4.788 · E·diag(±1)·Eᵀ 4.603 · E·M·Eᵀ 4.320 · untied 4.311. One small matrix closes 83–98% of the gap, depending on the width.",
      "So these limits do not apply to a deep model: its layers can learn that map. An explicit linear map before a tied LM head matches or beats an untied one (Gulordava et al. 2018).",
    ],
  },
  {
    id: "price",
    title: "Parameter count",
    intro: ["Tying saves exactly one matrix of vocabulary × width."],
    custom: () => pricing(models),
  },
  {
    id: "who",
    title: "Who ties",
    intro: ["It depends on the share of the model that a separate LM head would be. Each cell is one known model; rows are ranges of that share."],
    custom: () => who(models, bands),
  },
  {
    id: "check",
    title: "Quiz",
    intro: ["Six questions, with an explanation for every answer."],
    custom: () => check(questions),
  },
];

function pricing(models) {
  const by = (slug) => models.find((model) => model.slug === slug);
  const [tiny, gpt2, phi] = ["tinyllama-1.1b", "gpt-2-small", "phi-4-mini"].map(by);
  const size = (model) => `${grouped(model.vocab)} × ${grouped(model.dim)} = ${grouped(model.matrix)}`;
  const rows = [
    ["Tying halves the parameter count.", `It saves one matrix. ${phi.name}: ${human(phi.trunk)} non-embedding + ${human(phi.matrix)} embedding = ${human(phi.tied_total)} tied, ${human(phi.untied_total)} untied: ${percent(phi.head_share)}.`],
    [`${tiny.name.split(" ")[0]} would save over 300 million.`, `${size(tiny)}. From ${grouped(tiny.untied_total)} to ${grouped(tiny.tied_total)}.`],
    ["GPT-2 small saves about 50 million.", `${size(gpt2)}.`],
    ["Tying a trained untied model does not change its behaviour.", "It destroys the model. Measured on a 1.1B model, nats on WikiText-2: 3.403 as trained; 11.15 with W := E; 10.00 with E := W. A joint factorization of rank d, weighted by token frequency, keeps 3.440."],
    ["parameter-golf initializes its tied embedding with a standard deviation of 0.02.", "Its own defaults are `tied_embed_init_std` 0.005 and `tied_embed_lr` 0.05."],
    ["Llama 3 is untied.", `The large ones are. ${models.filter((m) => m.slug.startsWith("llama-3") && m.tied).map((m) => m.name).join(" and ")} are tied.`],
    ["Set `head.weight = embed.weight` and you are done.", "In memory, yes. If the config does not declare it, the next save and load undoes it. `tiebeam doctor` detects that."],
  ];
  return h("div", { class: "stack-wide play" },
    h("section", { class: "panel" }, h("h3", null, `${phi.name}, to scale`), h("div", { class: "play" }, shareBars(BigInt(phi.trunk), BigInt(phi.matrix)))),
    h("section", { class: "panel" }, scroller("Claims and facts", h("table", { class: "data words" },
      h("thead", null, h("tr", null, h("th", { scope: "col" }, "Claim"), h("th", { scope: "col" }, "Fact"))),
      h("tbody", null, rows.map(([claim, fact]) => h("tr", null, h("td", null, prose(claim)), h("td", null, prose(fact)))))))),
    h("p", null, h("a", { class: "button", href: "calculator.html" }, "Try your own numbers in the calculator")));
}

function who(models, bands) {
  const counted = [...bands].reverse();
  return h("div", { class: "stack-wide play" },
    h("section", { class: "panel" },
      h("div", { class: "stack" }, counted.map((band) => h("div", { class: "band" },
        h("span", null, h("strong", null, band.label), h("br"), h("span", { class: "quiet tiny" }, band.short)),
        h("span", { class: "cells", "aria-hidden": "true" }, Array.from({ length: band.models }, (_, i) => h("i", { class: i < band.tied ? "" : "untied" })))))),
      h("ul", { class: "legend" }, h("li", null, tieWord(true)), h("li", null, tieWord(false)))),
    h("section", { class: "panel" }, scatter(models, { narrow: media("(max-width: 640px)").matches })));
}

const questions = [
  { id: "saves", ask: "A model has a vocabulary of 50,257 and a width of 768. What does tying save?", right: 1, answers: [
    ["Half of its parameters", "Only half of the vocabulary matrices. The non-embedding parameters do not change."],
    ["50,257 × 768 = 38,597,376 parameters", "One matrix, exactly. That is GPT-2 small."],
    ["About 50 million", "This number is often repeated; the product is 38.6 million."] ] },
  { id: "psd", ask: "Which of these can E·Eᵀ not be, at any width?", right: 2, answers: [
    ["Zero for some pairs of words", "It can: orthogonal rows."],
    ["Larger than 1", "It can: long rows."],
    ["Negative for a word after itself", "A row times itself is a squared norm. This follows from E·Eᵀ being positive semidefinite."] ] },
  { id: "worst", ask: "Which limits a tied direct path more: symmetry or positive semidefiniteness?", right: 1, answers: [
    ["Symmetry", "It is the better known one, but on real text the antisymmetric part is about a sixth of the energy."],
    ["Positive semidefiniteness", "Most of the symmetric part’s energy is in negative eigenvalues; without them 80% is missed at rank 64, compared with 25% for symmetry alone."],
    ["They are the same constraint", "`E·diag(±1)·Eᵀ` is symmetric and not semidefinite, and its loss is clearly lower."] ] },
  { id: "small", ask: "What is the cheapest way to recover most of the loss of a tied direct path?", right: 0, answers: [
    ["A d × d map", "It costs d² parameters instead of V·d, and closes 83–98% of the gap."],
    ["A wider embedding", "E·Eᵀ stays symmetric and semidefinite at every width."],
    ["A second matrix", "That works, but costs V·d parameters."] ] },
  { id: "convert", ask: "You have a trained untied model and set W := E. What happens?", right: 2, answers: [
    ["Nothing: both are vocabulary matrices", "The two matrices were trained for different purposes, and the layers for those two matrices."],
    ["The loss rises slightly", "Measured on a 1.1B model: 3.40 nats become 11.15. A uniform guess over its 32,000 tokens costs ln 32,000 = 10.37."],
    ["The model is destroyed", "Tie before training, or factorize both matrices jointly and keep two small maps."] ] },
  { id: "who", ask: "Which model is most likely tied?", right: 0, answers: [
    ["500M parameters, vocabulary 150k", "A separate LM head would be a large share of it. Nearly all such models are tied."],
    ["70B parameters, vocabulary 32k", "A separate LM head is well below 1% there; nearly all such models are untied."],
    ["It does not depend on size", "It depends on the share of the LM head, which falls as models grow."] ] },
];
