// Points for interacting with the lesson, stored in this browser only.
const KEY = "tiebeam.lesson";
const listeners = new Set();
let earned = load();

function load() {
  try {
    const kept = JSON.parse(localStorage.getItem(KEY) ?? "{}");
    return kept && typeof kept === "object" && !Array.isArray(kept) ? kept : {};
  } catch {
    return {}; // private windows may refuse storage; the lesson works without it
  }
}

function store() {
  try {
    localStorage.setItem(KEY, JSON.stringify(earned));
  } catch {
    // as above
  }
  for (const tell of listeners) tell(total());
}

export const total = () => Object.values(earned).filter(Number.isFinite).reduce((a, b) => a + b, 0);

export function award(key, points) {
  if (key in earned) return;
  earned[key] = points;
  store();
}

export function reset() {
  earned = {};
  store();
}

export function onChange(tell) {
  listeners.add(tell);
  tell(total());
}
