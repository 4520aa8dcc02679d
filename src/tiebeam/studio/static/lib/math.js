// MathML: math("z", o("="), sub("E", "i")). A plain string is an identifier, or a number if it looks like one.
const MATHML = "http://www.w3.org/1998/Math/MathML";

function node(tag, ...children) {
  const made = document.createElementNS(MATHML, tag);
  for (const child of children.flat(Infinity)) made.append(child instanceof Node ? child : token(String(child)));
  return made;
}

function token(text) {
  const made = document.createElementNS(MATHML, /^[\d.,]+$/.test(text) ? "mn" : "mi");
  made.append(text);
  return made;
}

function plain(tag, text) {
  const made = document.createElementNS(MATHML, tag);
  made.append(text);
  return made;
}

// An operator; brackets keep the height of the text.
export function o(text) {
  const made = plain("mo", text);
  if ("()‖".includes(text)) made.setAttribute("stretchy", "false");
  return made;
}
export const words = (text) => plain("mtext", text);
export const row = (...parts) => node("mrow", parts);
export const sub = (base, index) => node("msub", base, index);
export const sup = (base, power) => node("msup", base, power);
export const frac = (above, below) => node("mfrac", above, below);
export const sum = (under) => node("munder", o("∑"), under);
// ᵀ and ² as characters: without a font for mathematics, browsers set raised letters far too high.
const raised = (base, mark) => {
  const made = plain("mi", mark);
  made.setAttribute("mathvariant", "normal");
  return row(base, made);
};
export const transposed = (base) => raised(base, "ᵀ");
export const norm2 = (...parts) => raised(row(o("‖"), parts, o("‖")), "²");

// A formula on its own line.
export function display(...parts) {
  const made = node("math", row(parts));
  made.setAttribute("display", "block");
  return made;
}
