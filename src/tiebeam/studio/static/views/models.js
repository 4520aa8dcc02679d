// Models view: the list of models, and the page of the chosen one. The parts of the page are in model/.
import { get, job, post } from "../lib/api.js";
import { h } from "../lib/dom.js";
import { meter } from "../lib/job.js";
import { grouped, human, humanBytes } from "../lib/numbers.js";
import { directPath, spectrum } from "../model/direct_path.js";
import { rows } from "../model/rows.js";
import { budget, findings, verdict, vocabulary } from "../model/summary.js";
import { tensors } from "../model/tensors.js";
import { whatIf } from "../model/what_if.js";

// Path of a dropped item: file managers give an encoded URL, editors and terminals the path itself.
function pathOf(dropped) {
  const line = dropped.split("\n")[0].trim();
  try {
    return line.startsWith("file:") ? decodeURIComponent(new URL(line).pathname) : line;
  } catch {
    return line;
  }
}

export async function show(main) {
  const [{ models }, status] = await Promise.all([get("api/models"), get("api/status")]);
  const here = h("div", { class: "stack-wide" });
  const list = h("div", { class: "choices tall" });
  const typed = h("input", { id: "path", type: "text", autocomplete: "off", spellcheck: "false", placeholder: status.root ? `${status.root}/…` : "/path/to/model", "aria-describedby": "path-note" });
  const problem = h("p", { class: "error", role: "alert" });
  const form = h("form", { class: "field", onsubmit: (event) => { event.preventDefault(); find(typed.value); } },
    h("label", { for: "path" }, "Open a path"), typed,
    h("span", { class: "hint", id: "path-note" }, status.root ? `Type a path or drop one here; it must be below ${status.root}.` : "Only models named on the command line can be read; start with --root DIR to open others."),
    h("div", null, h("button", { type: "submit" }, "Open")), problem);
  const side = h("section", { class: "panel stack", "aria-label": "Models" }, models.length ? h("fieldset", null, h("legend", null, "Models"), list) : null, form);
  main.replaceChildren(h("h1", null, "Your models"), h("div", { class: "side-by-side play" }, side, here));
  for (const model of models) offer(model);
  side.addEventListener("dragover", (event) => event.preventDefault());
  side.addEventListener("drop", (event) => {
    event.preventDefault();
    typed.value = pathOf(event.dataTransfer.getData("text/uri-list") || event.dataTransfer.getData("text/plain"));
    if (typed.value) find(typed.value);
    else problem.textContent = "Browsers hide the path of a dropped file; drop the path as text, or type it.";
  });

  function offer(model) {
    const input = h("input", { type: "radio", name: "model", value: model.id, onchange: () => open(model) });
    list.append(h("label", { class: "choice" }, input, h("span", null, model.name)));
    return input;
  }
  async function find(path) {
    problem.textContent = "";
    try {
      const model = await post("api/find", { path });
      const input = list.querySelector(`input[value="${model.id}"]`) ?? offer(model);
      if (!known.some((one) => one.id === model.id)) known.push(model);
      input.checked = true;
      await open(model);
    } catch (error) {
      problem.textContent = error.message;
    }
  }
  let current = null;
  let reading = null; // stops the reading of the model before
  async function open(model, address = "push") {
    if (address === "push" && current) history.pushState(null, "", `?model=${model.id}`); // Back opens the one before
    else if (address !== "keep") history.replaceState(null, "", `?model=${model.id}`);
    current = model;
    reading?.abort();
    const mine = (reading = new AbortController());
    const shown = meter(`Reading ${model.name}`, () => mine.abort());
    const known = h("p", { class: "quiet" });
    here.replaceChildren(h("section", { class: "panel stack", "aria-labelledby": "opening" }, h("h2", { id: "opening" }, model.name), known, shown.element));
    const partial = (found) => { known.textContent = `${found.format} · ${grouped(found.tensors)} tensors · ${human(found.parameters)} parameters · ${humanBytes(found.bytes)}`; };
    try {
      const report = await job(`api/models/${model.id}`, shown.update, { signal: mine.signal, partial });
      if (reading === mine) here.replaceChildren(...view(model, report).filter(Boolean));
    } catch (error) {
      if (reading !== mine) return;
      const again = h("button", { type: "button", onclick: () => open(model, "keep") }, "Read it again");
      if (error.name === "AbortError") shown.element.replaceChildren(h("p", { class: "note", role: "status" }, "Cancelled."), again);
      else here.replaceChildren(h("p", { class: "notice error", role: "alert" }, error.message));
    }
  }
  const known = [...models];
  const wanted = () => known.find((model) => model.id === new URLSearchParams(location.search).get("model"));
  const first = wanted() ?? models[0];
  window.addEventListener("popstate", () => {
    const model = wanted() ?? first;
    if (!model || model === current) return;
    list.querySelector(`input[value="${model.id}"]`).checked = true;
    open(model, "keep");
  });
  if (!first) {
    here.replaceChildren(h("div", { class: "panel empty" }, h("h2", null, "No models"), status.root ? h("p", null, "Nothing was found below ", h("code", null, status.root), ".") : null, h("p", { class: "quiet" }, "Start the studio with a model:"), h("p", null, h("code", null, "tiebeam studio ./my-model")), h("p", { class: "quiet" }, "or with a directory of models:"), h("p", null, h("code", null, "tiebeam studio --root ~/models"))));
    return;
  }
  list.querySelector(`input[value="${first.id}"]`).checked = true;
  await open(first);
}

function view(model, report) {
  const parts = [verdict(report), vocabulary(report), findings(report), budget(report)];
  if (report.tie !== "none") parts.push(rows(model), directPath(model), spectrum(model), whatIf(model, report));
  return [...parts, tensors(model)];
}
