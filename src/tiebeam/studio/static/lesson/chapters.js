// The story, chapter by chapter. A chapter with a figure and steps is scroll-synced; one with `play` is a workshop.
import { scatter, shareBars } from "../lib/charts.js";
import { h, media, prose, scroller, tieWord } from "../lib/dom.js";
import { grouped, human, percent } from "../lib/numbers.js";
import { bigrams, explorer, fitting, logits, lookup, spectrum, stream } from "./figures.js";
import { check } from "./questions.js";

export const chapters = ({ models, bands }) => [
  {
    id: "rows",
    title: "A word is a row",
    figure: lookup,
    steps: [
      { title: "A vocabulary is a numbered list", text: ["A model does not see words. It sees numbers: *New* is 0, *York* is 1. The plainest way to write “word 1” as a vector is a row of zeros with a single one in it: a *one-hot* row.", "Pick a word and watch its row."] },
      { title: "One-hot times a matrix picks a row", text: ["The *embedding* E has one row per word. Multiply a one-hot row by E, and everything is multiplied by zero except one row. That row comes out.", "Edit any number of E. The picture is computed, not drawn."] },
      { title: "So nobody multiplies", text: ["Since the product is always a row, programs simply read row 1. The embedding is a lookup table of V × D numbers: vocabulary times width.", "Remember its shape. It will come back at the other end."] },
    ],
  },
  {
    id: "logits",
    title: "The way out is a dot product",
    figure: logits,
    steps: [
      { title: "A score for every word", text: ["After all its layers the model holds one vector h of width D, and must say how likely each word is to come next. It takes the dot product of h with one row per word. These scores are the *logits*.", "A logit is large when h points the way the word’s row points."] },
      { title: "Scores become chances", text: ["*Softmax* raises e to each score and divides by the sum. Only differences between scores matter: add 5 to all of them and nothing changes."] },
      { title: "The same shape again", text: ["One row of width D per word: the head’s matrix W is V × D, exactly like E. So they can be the same matrix. Then the model is *tied*; with a matrix for each end it is *untied*.", "The rest of this page is about what that choice does."] },
    ],
  },
  {
    id: "stream",
    title: "The direct path",
    figure: stream,
    steps: [
      { title: "Layers add, they do not replace", text: ["Between the two ends runs the *residual stream*: it starts as the word’s row of E, and each attention and MLP block adds its own vector to it. The head takes the dot product with the sum, so every logit is a sum of parts."] },
      { title: "One part is always there", text: ["The first part is the embedding itself, straight to the head: `E·Wᵀ`. It sees one word and scores the next: a table of *bigrams* written into the weights. A model with no layers at all has nothing else.", "Now: what can that table say when W is E?"] },
    ],
    ask: { id: "direct", ask: "With tied weights and no layers, which word gets a high score after *York*?", right: 1,
      answers: [
        ["Whatever usually follows York", "That would need row *York* of `E·Eᵀ` to hold bigram counts. It holds dot products of York’s row with every row, its own among them."],
        ["York itself, and words whose rows look like York’s", "The score of York after York is York’s row times itself: the square of its length. Nothing is more alike than itself, so a word’s own score is among the highest."],
        ["All words the same", "Only if all rows were at right angles to York’s."],
      ], then: "The layers of a tied model have to write over this before the head reads the stream." },
  },
  {
    id: "direction",
    title: "Language has a direction",
    figure: bigrams,
    steps: [
      { title: "Count what follows what", text: ["Take a small text and count each pair of neighbours. The row is the word that is here, the column the word that comes next. Change the text; the table follows."] },
      { title: "The table is not symmetric", text: ["*York* follows *New*; *New* does not follow *York*. Mirror the table on its diagonal and it becomes another language.", "So the direct path should not be symmetric either."] },
    ],
  },
  {
    id: "symmetry",
    title: "E·Eᵀ cannot have one",
    intro: ["When W is E, the score of *b* after *a* is row a times row b. The score of *a* after *b* is row b times row a: the same number. Try to break it."],
    ask: { id: "symmetry", ask: "Can you choose E so that *New → York* is high and *York → New* is low, with the direct path E·Eᵀ?", right: 2,
      answers: [
        ["Yes, with enough columns", "More columns do not help: row a times row b equals row b times row a at every width."],
        ["Yes, with negative numbers", "Negative numbers change both scores together: they are one and the same product."],
        ["No, for no E at all", "A dot product does not know which of its two sides came first. `(E·Eᵀ)ᵀ = E·Eᵀ`."],
      ] },
    play: explorer,
    after: [
      "That is what most write-ups stop at. But symmetry is not even the main constraint. Look at the other two checks above: with E·Eᵀ *every word scores itself at zero or more*, and *no eigenvalue is ever negative*, whatever you type. E·Eᵀ is *positive semidefinite*: for any mixture x of words, xᵀE·Eᵀx is the squared length of Eᵀx.",
      "Choose `E·diag(1,−1)·Eᵀ`: still symmetric, but negative eigenvalues appear, and a word may dislike itself. In real text most words almost never follow themselves.",
    ],
    second: spectrum,
    close: ["The same on a real text (1,000 words, 387k tokens of prose): the antisymmetric part holds 16.9% of the energy of the association table, but of the symmetric part 72.8% is in negative eigenvalues. The best table of rank 64 leaves out 15.2% if it may be any matrix, 24.9% if it must be symmetric, and *80.1%* if it must be positive semidefinite."],
  },
  {
    id: "untie",
    title: "Two tables, or one small map",
    intro: [
      "Untied, the direct path is E·Wᵀ: any matrix of rank d. That doubles the table. But there is a cheaper way out: put one small d × d map M between the two uses of the same table, E·M·Eᵀ. Or an MLP, which every transformer has plenty of.",
      "Train them all on the text above, here, now. Blue forms keep one table; orange has two.",
    ],
    ask: { id: "map", ask: "A d × d map adds 9 numbers at d = 3. How much of the gap between E·Eᵀ and E·Wᵀ will it close?", right: 2,
      answers: [
        ["Almost none: E is still shared", "Sharing the rows is not what hurts. Train and see."],
        ["About half", "More. Train and see."],
        ["Nearly all", "Between one table and itself, M makes any matrix of rank d within the span of E: asymmetric, and with eigenvalues of either sign."],
      ] },
    play: fitting,
    close: [
      "On the real text of 1,000 words, at d = 64, in nats on text held out: E·Eᵀ 4.788 · E·diag(±1)·Eᵀ 4.603 · E·M·Eᵀ 4.320 · untied 4.311. One small matrix closes 83–98% of the gap, depending on the width.",
      "So tying is no verdict on a deep model: its layers can learn that map. And where a linear map is put before a tied head on purpose, it matches or beats an untied one (Gulordava et al. 2018).",
    ],
  },
  {
    id: "price",
    title: "What you pay, to the last parameter",
    intro: ["Tying saves one matrix of vocabulary × width. Not half the model, not “hundreds of millions” unless the product says so."],
    custom: () => pricing(models),
  },
  {
    id: "who",
    title: "Who ties",
    intro: ["What decides is how large a part of the model a second matrix would be. Each cell is one known model; the rows are bands of that share."],
    custom: () => who(models, bands),
  },
  {
    id: "check",
    title: "Check yourself",
    intro: ["Six questions. Every answer, right or wrong, comes with its reason."],
    custom: () => check(questions),
  },
];

function pricing(models) {
  const by = (slug) => models.find((model) => model.slug === slug);
  const [tiny, gpt2, phi] = ["tinyllama-1.1b", "gpt-2-small", "phi-4-mini"].map(by);
  const size = (model) => `${grouped(model.vocab)} × ${grouped(model.dim)} = ${grouped(model.matrix)}`;
  const rows = [
    ["Tying halves the parameter count.", `It saves one matrix. ${phi.name}: ${human(phi.trunk)} trunk + ${human(phi.matrix)} table = ${human(phi.tied_total)} tied, ${human(phi.untied_total)} untied: ${percent(phi.head_share)}.`],
    [`${tiny.name.split(" ")[0]} would save over 300 million.`, `${size(tiny)}. From ${grouped(tiny.untied_total)} to ${grouped(tiny.tied_total)}.`],
    ["GPT-2 small saves about 50 million.", `${size(gpt2)}.`],
    ["Tying a trained untied model leaves its behaviour as it was.", "It destroys it. Measured on a 1.1B model, nats on WikiText-2: 3.403 as trained; 11.15 with W := E; 10.00 with E := W. A joint factorisation at rank d, its rows weighted by how often tokens occur, keeps 3.440."],
    ["parameter-golf starts its tied table at a standard deviation of 0.02.", "Its own defaults are `tied_embed_init_std` 0.005 and `tied_embed_lr` 0.05."],
    ["Llama 3 is untied.", `The large ones are. ${models.filter((m) => m.slug.startsWith("llama-3") && m.tied).map((m) => m.name).join(" and ")} are tied.`],
    ["Set `head.weight = embed.weight` and you are done.", "In memory, yes. If the configuration does not say so, the next save and load undoes it. `tiebeam doctor` finds that."],
  ];
  return h("div", { class: "stack-wide play" },
    h("section", { class: "panel" }, h("h3", null, `${phi.name}, to scale`), h("div", { class: "play" }, shareBars(BigInt(phi.trunk), BigInt(phi.matrix)))),
    h("section", { class: "panel" }, scroller("What is often written", h("table", { class: "data words" },
      h("thead", null, h("tr", null, h("th", { scope: "col" }, "You may have read"), h("th", { scope: "col" }, "The arithmetic"))),
      h("tbody", null, rows.map(([said, right]) => h("tr", null, h("td", null, prose(said)), h("td", null, prose(right)))))))),
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
    ["Half of its parameters", "Only of the vocabulary matrices, and only because there are two. The trunk is not touched."],
    ["50,257 × 768 = 38,597,376 parameters", "One matrix, exactly. That is GPT-2 small."],
    ["About 50 million", "A figure that is often repeated; the product is 38.6 million."] ] },
  { id: "psd", ask: "Which of these can E·Eᵀ not be, at any width?", right: 2, answers: [
    ["Zero for some pairs of words", "It can: rows at right angles."],
    ["Larger than 1", "It can: long rows."],
    ["Negative for a word after itself", "A row times itself is a squared length. That is the weaker face of being positive semidefinite."] ] },
  { id: "worst", ask: "Of symmetry and positive semidefiniteness, which hurts a tied direct path more?", right: 1, answers: [
    ["Symmetry", "It is the famous one, but on real text the antisymmetric part is about a sixth of the energy."],
    ["Positive semidefiniteness", "Most of the symmetric part’s energy is in negative eigenvalues; allowing only positive ones leaves 80% out at rank 64, against 25% for symmetry alone."],
    ["They are the same constraint", "`E·diag(±1)·Eᵀ` is symmetric and not semidefinite; it does visibly better."] ] },
  { id: "small", ask: "What is the cheapest way to give a tied direct path back nearly all it lost?", right: 0, answers: [
    ["A d × d map between the table and itself", "It costs d² numbers instead of V·d, and closes 83–98% of the gap."],
    ["A wider table", "E·Eᵀ stays symmetric and semidefinite at every width."],
    ["A second table", "That works, but costs V·d numbers: untying is the dear way."] ] },
  { id: "convert", ask: "You hold a trained untied model and set W := E. What happens?", right: 2, answers: [
    ["Nothing: both are vocabulary tables", "The two tables were trained for different jobs, and the trunk for those two tables."],
    ["A small loss that fades at once", "Measured on a 1.1B model: 3.40 nats become 11.15. Picking one of its 32,000 tokens blindly costs ln 32,000 = 10.37."],
    ["It is destroyed", "Tie before training, or factorise both tables jointly and keep two small maps."] ] },
  { id: "who", ask: "Which model most likely ties?", right: 0, answers: [
    ["500M parameters, vocabulary 150k", "A second table would be a large part of it. Nearly everyone ties there."],
    ["70B parameters, vocabulary 32k", "There the second table is well under 1%; nearly nobody bothers to tie."],
    ["It does not depend on size", "It depends on the share of the head, which falls as models grow."] ] },
];
