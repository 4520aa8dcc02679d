// Parse and format numbers exactly as tiebeam.budget does; counts are BigInt.
const COUNT = /^(\d{1,3}(?:,\d{3})+|\d+(?:_\d+)*)(?:\.(\d+))?(?:[eE]\+?(\d{1,2})|\s?([kKmMbBtT]))?$/;
const POWERS = { K: 3, M: 6, B: 9, T: 12 };
const LARGEST = 10n ** 18n;

const shown = (text) => (text.length <= 40 ? text : `${text.slice(0, 37)}...`);

// "3.2B", "135M", "50k", "50,257", "1e9" -> BigInt; throws an error message.
export function parseCount(text) {
  const found = text.length <= 40 ? COUNT.exec(text.trim()) : null;
  if (!found) throw new RangeError(`'${shown(text)}' is not a count; write it like 50257, 50,257, 50k, 135M or 3.2B`);
  const [, whole, fraction = "", exponent = "0", suffix = ""] = found;
  const power = Number(exponent) + (POWERS[suffix.toUpperCase()] ?? 0) - fraction.length;
  const digits = BigInt(whole.replace(/[,_]/g, "") + fraction);
  const scaled = digits * 10n ** BigInt(Math.max(power, 0));
  const divisor = 10n ** BigInt(Math.max(-power, 0));
  if (scaled % divisor) {
    const hint = found[3] || found[4] ? "" : `; did you mean ${text.trim()}B or ${text.trim()}M?`;
    throw new RangeError(`'${text}' is not a whole number${hint}`);
  }
  const count = scaled / divisor;
  if (count > LARGEST) throw new RangeError(`'${text}' is more than a quintillion (1e18), beyond any model; check the suffix`);
  return count;
}

const rounded = (numerator, denominator) => (2n * numerator + denominator) / (2n * denominator);

export const grouped = (count) => String(count).replace(/\B(?=(\d{3})+$)/g, ",");

// Exact below 10,000; then k and M with one decimal, B and T with two: "614.6M", "3.84B".
export function human(count) {
  const n = BigInt(count);
  if (n < 10_000n) return grouped(n);
  let scaled, decimals, unit;
  for ([unit, decimals] of [["k", 1], ["M", 1], ["B", 2], ["T", 2]]) {
    scaled = rounded(n * 10n ** BigInt(decimals), 10n ** BigInt(POWERS[unit.toUpperCase()]));
    if (scaled < 1000n * 10n ** BigInt(decimals)) break;
  }
  const tens = 10n ** BigInt(decimals);
  return `${grouped(scaled / tens)}.${String(scaled % tens).padStart(decimals, "0")}${unit}`;
}

// Decimal units; one decimal below 10 and from GB up: "576 B", "9.4 MB", "98 MB", "1.2 GB".
export function humanBytes(count) {
  const n = BigInt(count);
  if (n < 1000n) return `${n} B`;
  let tenths;
  for (const [unit, power] of [["kB", 3n], ["MB", 6n], ["GB", 9n], ["TB", 12n]]) {
    tenths = rounded(n * 10n, 10n ** power);
    if (tenths < 100n || (power >= 9n && tenths < 10_000n)) return `${tenths / 10n}.${tenths % 10n} ${unit}`;
    const whole = rounded(n, 10n ** power);
    if (power < 9n && whole < 1000n) return `${whole} ${unit}`;
  }
  return `${grouped(tenths / 10n)}.${tenths % 10n} TB`;
}

// One decimal, round half to even, as in Python.
function oneDecimal(x) {
  const tie = Number.isInteger(x * 4) && !Number.isInteger(x * 2);
  if (!tie) return x.toFixed(1);
  const below = Math.floor(x * 10);
  return ((below % 2 ? below + 1 : below) / 10).toFixed(1);
}

export const percent = (share) => (share > 0 && share < 0.0005 ? "<0.1%" : `${oneDecimal(100 * share)}%`);

// a / b as the nearest double, for BigInt of any size.
export function ratio(a, b) {
  if (a === 0n) return 0;
  const shift = BigInt(Math.max(0, 66 - (a.toString(2).length - b.toString(2).length)));
  const scaled = a << shift;
  return Number((scaled / b) | (scaled % b ? 1n : 0n)) / 2 ** Number(shift);
}

export const signed = (x, digits = 2) => (Math.abs(x) < 0.5 * 10 ** -digits ? (0).toFixed(digits) : x.toFixed(digits).replace("-", "−"));
