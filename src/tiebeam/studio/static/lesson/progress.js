// Points and answers of the lesson, stored in this browser only. Another tab's changes are taken over, not overwritten.
const KEY = "tiebeam.lesson";
const listeners = new Set();
let kept = load();

function load() {
  try {
    const found = JSON.parse(localStorage.getItem(KEY) ?? "{}");
    const part = (name) => (found && typeof found[name] === "object" && !Array.isArray(found[name]) ? found[name] : null);
    return { points: part("points") ?? {}, answers: part("answers") ?? {} };
  } catch {
    return { points: {}, answers: {} }; // private windows may refuse storage; the lesson works without it
  }
}

function store(change) {
  const other = load();
  kept = change({ points: { ...other.points, ...kept.points }, answers: { ...other.answers, ...kept.answers } });
  try {
    localStorage.setItem(KEY, JSON.stringify(kept));
  } catch {
    // as above
  }
  tell();
}

function tell() {
  for (const listener of listeners) listener(total());
}

export const total = () => Object.values(kept.points).filter(Number.isFinite).reduce((a, b) => a + b, 0);

export function award(key, points) {
  if (!(key in kept.points)) store((now) => ({ ...now, points: { ...now.points, [key]: points } }));
}

export const answered = (id) => (Number.isInteger(kept.answers[id]) ? kept.answers[id] : null);

export function answer(id, choice) {
  store((now) => ({ ...now, answers: { ...now.answers, [id]: choice } }));
}

export function reset() {
  const before = kept;
  kept = { points: {}, answers: {} };
  store(() => kept);
  return () => store(() => before); // undo
}

export function onChange(listener) {
  listeners.add(listener);
  listener(total());
}

window.addEventListener("storage", (event) => {
  if (event.key !== KEY) return;
  kept = load();
  tell();
});
