// Panels of the lesson that are no figures: tables, lists, what known models do.
import { hbars, shareBars } from "../lib/bars.js";
import { modelTable, scatter } from "../lib/scatter.js";
import { h, media, prose, swatch, tieWord } from "../lib/dom.js";
import { grouped, human, percent } from "../lib/numbers.js";
import { dataTable } from "../lib/table.js";

const table = (label, columns, rows) => h("section", { class: "panel play" }, dataTable(label, columns, rows.map((row) => row.map(prose)), { words: true }));

// What a row must hold at the input, and at the output.
export const purposes = () => h("div", null,
  table("Purposes", ["", "a row of the embedding", "a row of the LM head"], [
    ["is read by", "the first layers, as their input", "a dot product with the final hidden state"],
    ["must encode", "everything the layers may need about this token: its meaning, its spelling, its grammar, what it can be part of", "when this token comes next: the contexts in which it is likely"],
    ["similar rows mean", "tokens that the layers treat alike", "tokens that can replace each other in the same context"],
    ["its length", "how strongly the token starts in the residual stream", "how much the direction of the hidden state matters for this token"],
    ["gets its gradient", "only when the token is in the input", "at every position, because softmax compares all rows"],
    ["rare tokens", "change rarely, and stay near their initial values", "are pushed away at every step"],
  ]),
  h("p", null, prose("One matrix can serve both because they mostly agree: words that replace each other also mean similar things ([Press & Wolf 2017](arXiv:1608.05859), [Inan et al. 2017](arXiv:1611.01462)). In a tied matrix the output side wins: its gradient is larger, most of all early in training ([Lopardo et al. 2026](arXiv:2603.26663)).")));

const barPanel = (title, items, range, note) => h("section", { class: "panel stack play narrow" }, h("h3", { class: "small" }, title), hbars(items, range), h("p", { class: "note" }, note));

// The limits of the direct path on a real text: 1,000 words, 387k tokens of prose.
export const missedByRank = () => barPanel("What the best approximation of rank 64 misses", [
  { name: "any matrix (E·Wᵀ)", value: 0.152, label: "15.2%", tone: "untied" },
  { name: "symmetric", value: 0.249, label: "24.9%", tone: "tied" },
  { name: "positive semidefinite (E·Eᵀ)", value: 0.801, label: "80.1%", tone: "tied" },
], { low: 0, high: 1 }, "Share of the energy of the text’s PMI matrix.");

export const heldOutByForm = () => barPanel("Held-out loss above that of E·Wᵀ, at d = 64", [
  { name: "E·Wᵀ", value: 0, label: "4.311 nats", tone: "untied" },
  { name: "E·M·Eᵀ", value: 4.32 - 4.311, label: "4.320 nats", tone: "tied" },
  { name: "E·diag(±1)·Eᵀ", value: 4.603 - 4.311, label: "4.603 nats", tone: "tied" },
  { name: "E·Eᵀ", value: 4.788 - 4.311, label: "4.788 nats", tone: "tied" },
], { low: 0, high: 0.5 }, "Bars start at the loss of the untied form; the numbers are the losses themselves.");

export const choosing = () => table("To tie or not to tie", ["if", "tie", "do not tie"], [
  ["the LM head would be", "more than about a tenth of the model: small models, large vocabularies", "less than a few percent: the saving does not matter"],
  ["memory or download size", "is the limit: phones, browsers, many small models", "is not"],
  ["training data per row", "is little: one matrix gets both gradients", "is plenty"],
  ["the two uses", "may be connected by layers: any deep model", "must differ without layers: very shallow models, or add a D × D map"],
  ["quantization", "one table needs the precision of its more sensitive use, the head", "each can have its own precision"],
  ["vocabulary sharding, pipelines", "needs both uses on the same rank, or a copy that is kept equal", "is simpler"],
  ["a trained untied model", "never by copying one matrix over the other", "keep it; or `tiebeam tie --joint`, with the loss measured"],
]);

const SOURCES = [
  ["Press & Wolf 2017", "1608.05859", "Using the output embedding to improve language models: tying lowers perplexity."],
  ["Inan et al. 2017", "1611.01462", "Tying word vectors and word classifiers: tying follows from a loss that uses similarity of words."],
  ["Vaswani et al. 2017", "1706.03762", "Attention is all you need: one matrix for both embeddings and the output, scaled by √d."],
  ["Yang et al. 2018", "1711.03953", "Breaking the softmax bottleneck: rank d limits what the LM head can represent."],
  ["Geva et al. 2021", "2012.14913", "Feed-forward layers are key-value memories: what layers add to the logits."],
  ["Lopardo et al. 2026", "2603.26663", "Tied embeddings resemble the output matrix; the head’s gradient dominates early."],
];

export const sources = () => h("div", null,
  h("ul", { class: "sources" }, SOURCES.map(([who, id, what]) => h("li", null, h("a", { href: `https://arxiv.org/abs/${id}`, rel: "noreferrer" }, `${who}, arXiv ${id}`), `: ${what}`)),
    h("li", null, h("a", { href: "https://aclanthology.org/D18-1323", rel: "noreferrer" }, "Gulordava et al. 2018, ACL D18-1323"), ": a linear map before a tied LM head matches or beats untied.")),
  h("p", { class: "note" }, prose("Numbers on the real text of 1,000 words: `tiebeam bigrams`. The 1.1B model is TinyLlama; `tiebeam tie --keep embed` and `--keep head` copy one of its matrices over the other, `--joint` is the factorization. Who ties, with a source for every model: `tiebeam models`. The links open only if you click them; this page loads nothing from the network.")));

export function pricing(models) {
  const by = (slug) => models.find((model) => model.slug === slug);
  const [tiny, gpt2, phi] = ["tinyllama-1.1b", "gpt-2-small", "phi-4-mini"].map(by);
  const size = (model) => `${grouped(model.vocab)} × ${grouped(model.dim)} = ${grouped(model.matrix)}`;
  const rows = [
    ["Tying halves the parameter count.", `It saves one matrix. ${phi.name}: ${human(phi.trunk)} non-embedding + ${human(phi.matrix)} embedding = ${human(phi.tied_total)} tied, ${human(phi.untied_total)} untied: ${percent(phi.head_share)}.`],
    [`${tiny.name.split(" ")[0]} would save over 300 million.`, `${size(tiny)}. From ${grouped(tiny.untied_total)} to ${grouped(tiny.tied_total)}.`],
    ["GPT-2 small saves about 50 million.", `${size(gpt2)}.`],
    ["Tying a trained untied model does not change its behaviour.", "It destroys the model. TinyLlama 1.1B loses 2.795 nats per token on Wikipedia as trained, and more than 10 with either matrix in place of both. A joint factorization of rank D that is fitted to text loses 2.829."],
    ["parameter-golf initializes its tied embedding with a standard deviation of 0.02.", "Its own defaults are `tied_embed_init_std` 0.005 and `tied_embed_lr` 0.05."],
    ["Llama 3 is untied.", `The large ones are. ${models.filter((m) => m.slug.startsWith("llama-3") && m.tied).map((m) => m.name).join(" and ")} are tied.`],
    ["Set `head.weight = embed.weight` and you are done.", "In memory, yes. If the config does not declare it, the next save and load undoes it. `tiebeam doctor` detects that."],
  ];
  return h("div", { class: "stack-wide play" },
    h("section", { class: "panel" }, h("h3", null, `${phi.name}, to scale`), h("div", { class: "play" }, shareBars(BigInt(phi.trunk), BigInt(phi.matrix)))),
    table("Claims and facts", ["claim", "fact"], rows),
    h("p", null, h("a", { class: "button", href: "calculator.html" }, "Try your own numbers in the calculator")));
}

// A few models of a range by name, the best known first: one per family, tied ones before untied ones.
function named(models, { low, high }) {
  const inside = models.filter((m) => m.head_share !== null && 100 * m.head_share >= low && (high === null || 100 * m.head_share < high));
  const pick = (tied, most) => {
    const families = new Set();
    return inside.filter((m) => m.tied === tied && !families.has(m.architecture) && families.add(m.architecture)).slice(0, most);
  };
  return h("ul", { class: "named" }, [...pick(true, 4), ...pick(false, 3)].map((m) => h("li", null, swatch(m.tied), m.name)));
}

export function who(models, bands) {
  const counted = [...bands].reverse();
  return h("div", { class: "stack-wide play" },
    h("section", { class: "panel" },
      h("div", { class: "stack" }, counted.map((band) => h("div", { class: "band" },
        h("span", null, h("strong", null, band.label), h("br"), h("span", { class: "quiet tiny" }, band.short)),
        h("div", null, h("span", { class: "cells", "aria-hidden": "true" }, Array.from({ length: band.models }, (_, i) => h("i", { class: i < band.tied ? "" : "untied" }))), named(models, band))))),
      h("ul", { class: "legend" }, h("li", null, tieWord(true)), h("li", null, tieWord(false)))),
    h("section", { class: "panel" }, scatter(models, { narrow: media("(max-width: 640px)").matches }), modelTable(models)));
}
