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

export const o = (text) => plain("mo", text); // operator
export const words = (text) => plain("mtext", text);
export const row = (...parts) => node("mrow", parts);
export const sub = (base, index) => node("msub", base, index);
export const sup = (base, power) => node("msup", base, power);
export const frac = (above, below) => node("mfrac", above, below);
export const sum = (under) => node("munder", o("∑"), under);
export const transposed = (base) => sup(base, o("⊤"));
export const norm2 = (...parts) => sup(row(o("‖"), parts, o("‖")), "2");

// A formula on its own line.
export function display(...parts) {
  const made = node("math", row(parts));
  made.setAttribute("display", "block");
  return made;
}
