// Create DOM elements without a framework. Styles are set by property, because the page's Content-Security-Policy
// forbids style attributes. Names and texts come from untrusted models: every string is added as text, with control
// characters and controls of the writing direction as escapes.
import { visible } from "./visible.js";

const SVG = "http://www.w3.org/2000/svg";

function fill(node, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, v] of Object.entries(value)) node.style.setProperty(key, v);
    else if (name === "value" || name === "checked" || name === "disabled") node[name] = value;
    else node.setAttribute(name, value === true ? "" : visible(String(value)));
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) node.append(child instanceof Node ? child : visible(String(child)));
  }
  return node;
}

export const h = (tag, props, ...children) => fill(document.createElement(tag), props, children);
export const s = (tag, props, ...children) => fill(document.createElementNS(SVG, tag), props, children);

let made = 0;
export const freshId = (stem) => `${stem}-${++made}`;

// Convert `code`, *emphasis* and [links](address) in a plain string of this page to elements; [text](arXiv:1234.56789) is
// a link to a paper.
export function prose(text) {
  return text.split(/(`[^`]+`|\[[^\]]+\]\((?:#|arXiv:)[^)\s]+\)|(?<![\w.])\*[\p{L}\d][^*]*\*)/u).map((part) => {
    if (part.startsWith("`")) return h("code", null, part.slice(1, -1));
    const link = /^\[(.+)\]\((.+)\)$/.exec(part);
    if (link) return h("a", { href: link[2].replace("arXiv:", "https://arxiv.org/abs/"), rel: "noreferrer" }, link[1]);
    if (part.startsWith("*") && part.length > 1) return h("em", null, part.slice(1, -1));
    return part;
  });
}

export const paragraphs = (texts) => [texts].flat().map((text) => (typeof text === "function" ? text() : typeof text === "string" ? h("p", null, prose(text)) : text));

export const media = (query) => window.matchMedia(query);

export function swatch(tied) {
  return h("span", { class: `swatch ${tied ? "tied" : "untied"}`, "aria-hidden": "true" });
}

export const tieWord = (tied) => h("span", { class: "tieword" }, swatch(tied), tied ? "tied" : "untied");

// A box that scrolls horizontally if its content is too wide; only then can it have the keyboard focus.
export function scroller(label, child) {
  const box = h("div", { class: "scroll" }, child);
  new ResizeObserver(() => {
    const wide = box.scrollWidth > box.clientWidth;
    for (const [name, value] of [["tabindex", "0"], ["role", "group"], ["aria-label", label]]) {
      if (wide) box.setAttribute(name, value);
      else box.removeAttribute(name);
    }
  }).observe(box);
  return box;
}
