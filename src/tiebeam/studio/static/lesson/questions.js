// Prediction questions, and the final quiz with an explanation for every answer.
import { freshId, h, prose } from "../lib/dom.js";
import { award } from "./progress.js";

function options(id, answers, picked) {
  return h("div", { class: "choices tall" }, answers.map(([text], i) => h("label", { class: "choice" },
    h("input", { type: "radio", name: id, value: i, onchange: () => picked(i) }), h("span", null, prose(text)))));
}

// {id, ask, answers: [[text, why], ...], right, then}: any answer shows its explanation and earns the points.
export function predict({ id, ask, answers, right, then }) {
  const explanation = h("div", { class: "answer", role: "status" });
  const field = freshId(id);
  return h("div", { class: "ask" },
    h("fieldset", null, h("legend", null, "Predict: ", prose(ask)),
      options(field, answers, (i) => {
        award(`predict:${id}`, 5);
        explanation.replaceChildren(h("p", null, h("strong", null, i === right ? "Yes. " : "Not quite. "), prose(answers[i][1])), then ? h("p", null, prose(then)) : "");
      })),
    explanation);
}

export function check(questions) {
  const score = h("p", { role: "status", class: "lead" });
  const state = new Map();
  const tell = () => {
    const correct = [...state.values()].filter(Boolean).length;
    score.textContent = state.size < questions.length ? `${state.size} of ${questions.length} answered, ${correct} right.` : `${correct} of ${questions.length} right. ${correct === questions.length ? "All correct." : "Change an answer to read its explanation."}`;
  };
  const list = questions.map(({ id, ask, answers, right }, n) => {
    const explanation = h("div", { class: "answer", role: "status" });
    return h("div", { class: "panel" }, h("fieldset", null, h("legend", null, `${n + 1}. `, prose(ask)),
      options(freshId(id), answers, (i) => {
        state.set(id, i === right);
        award(`check:${id}`, i === right ? 10 : 2);
        explanation.replaceChildren(h("p", null, h("strong", null, i === right ? "Right. " : "No. "), prose(answers[i][1])));
        tell();
      })), explanation);
  });
  tell();
  return h("div", { class: "check" }, list, score);
}
