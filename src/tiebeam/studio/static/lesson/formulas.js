// The formulas of the lesson. Each is a function, because a node can stand in one place only.
import { display, frac, norm2, o, row, sub, sum, sup, transposed, words } from "../lib/math.js";

export const lookupFormula = () => display(sub("x", "i"), o("="), sub(words("onehot"), "i"), o("·"), "E", o("="), sub("E", "i"));
export const logitFormula = () => display(sub("z", "i"), o("="), "h", o("·"), sub("W", "i"));
export const softmaxFormula = () => display(sub("p", "i"), o("="), frac(sup("e", sub("z", "i")), row(sum("j"), sup("e", sub("z", "j")))));
export const streamFormula = () => display("z", o("="), row(o("("), sub("E", "x"), o("+"), sum("ℓ"), sub("f", "ℓ"), o(")")), transposed("W"));
export const partsFormula = () => display(o("="), row(sub("E", "x"), transposed("W")), o("+"), sum("ℓ"), row(sub("f", "ℓ"), transposed("W")));
export const symmetryFormula = () => display(transposed(row(o("("), "E", transposed("E"), o(")"))), o("="), "E", transposed("E"));
export const semidefiniteFormula = () => display(transposed("x"), "E", transposed("E"), "x", o("="), norm2(transposed("E"), "x"), o("≥"), "0");
export const savingFormula = () => display(words("untied"), o("−"), words("tied"), o("="), "V", o("×"), "D");
