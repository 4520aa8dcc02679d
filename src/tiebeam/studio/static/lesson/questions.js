// Prediction questions, and the final quiz with an explanation for every answer. Answers are kept in this browser.
import { freshId, h, prose } from "../lib/dom.js";
import { answer, answered, award, onChange } from "./progress.js";

// One question: radio buttons, and an explanation below. explain(i) -> nodes. Follows resets and other tabs.
function question(key, legend, answers, explain, picked = () => {}) {
  const explanation = h("div", { class: "answer", role: "status" });
  const field = freshId("question");
  const inputs = answers.map((_, i) => h("input", { type: "radio", name: field, value: i, onchange: () => { answer(key, i); picked(i); } }));
  let shown = null;
  onChange(() => {
    const now = answered(key);
    if (now === shown) return;
    shown = now;
    inputs.forEach((input, i) => { input.checked = i === now; });
    explanation.replaceChildren(...(answers[now] ? explain(now) : []));
  });
  return [h("fieldset", null, h("legend", null, legend), h("div", { class: "choices tall" }, answers.map(([text], i) => h("label", { class: "choice" }, inputs[i], h("span", null, prose(text)))))), explanation];
}

// {id, ask, answers: [[text, why], ...], right, then}: any answer shows its explanation and earns the points.
export function predict({ id, ask, answers, right, then }) {
  const explain = (i) => [h("p", null, h("strong", null, i === right ? "Yes. " : "Not quite. "), prose(answers[i][1])), then ? h("p", null, prose(then)) : ""];
  return h("div", { class: "ask" }, question(`predict:${id}`, ["Predict: ", prose(ask)], answers, explain, () => award(`predict:${id}`, 5)));
}

export function check(questions) {
  const score = h("p", { role: "status", class: "lead" });
  const list = questions.map(({ id, ask, answers, right }, n) => {
    const explain = (i) => [h("p", null, h("strong", null, i === right ? "Right. " : "No. "), prose(answers[i][1]))];
    return h("div", { class: "panel" }, question(`check:${id}`, [`${n + 1}. `, prose(ask)], answers, explain, (i) => award(`check:${id}`, i === right ? 10 : 2)));
  });
  onChange(() => {
    const given = questions.map(({ id, right }) => [answered(`check:${id}`), right]).filter(([now]) => now !== null);
    const correct = given.filter(([now, right]) => now === right).length;
    score.textContent = given.length < questions.length ? `${given.length} of ${questions.length} answered, ${correct} right.` : `${correct} of ${questions.length} right. ${correct === questions.length ? "All correct." : "Change an answer to read its explanation."}`;
  });
  return h("div", { class: "check" }, list, score);
}
