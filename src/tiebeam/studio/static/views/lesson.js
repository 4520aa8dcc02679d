// Lesson view: scroll-synced on wide screens; with little space or reduced motion every step has its own figure.
import { catalog } from "../lib/api.js";
import { h, media, paragraphs } from "../lib/dom.js";
import { chapters } from "../lesson/chapters.js";
import { hero } from "../lesson/figures/hero.js";
import { onChange, reset } from "../lesson/progress.js";
import { predict } from "../lesson/questions.js";

export async function show(main, aside) {
  const story = chapters(await catalog());
  const sections = story.map((chapter, n) => section(chapter, `${n + 1} of ${story.length}`));
  main.replaceChildren(opening(story), rail(story, sections), ...sections);
  aside.replaceChildren(...points());
  document.addEventListener("keydown", stepWithKeys);
  openLink();
}

function opening(story) {
  return h("section", { class: "hero" },
    h("h1", null, "Embedding and ", h("span", { class: "nowrap" }, "LM head:"), " one matrix or two?"),
    h("p", { class: "lead" }, "A language model turns tokens into vectors with its embedding, and vectors into logits with its LM head. Both are matrices with one row per token, and many models use one matrix for both. This page shows what that saves and what it costs, with numbers you can change."),
    hero(),
    h("nav", { "aria-label": "Chapters" }, h("ol", { class: "toc" }, story.map((chapter) => h("li", null, h("a", { href: `#${chapter.id}` }, chapter.title))))),
    h("p", { class: "note" }, "Scroll, or use the keys → and ←. Points and answers are stored in this browser only."));
}

// A list of chapters at the edge of wide screens that marks the one on the screen.
function rail(story, sections) {
  const links = story.map((chapter) => h("a", { href: `#${chapter.id}` }, h("span", null, chapter.title)));
  const seen = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      const link = links[sections.indexOf(target)];
      if (isIntersecting) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
  }, { rootMargin: "-40% 0px -55% 0px" });
  sections.forEach((one) => seen.observe(one));
  return h("nav", { class: "rail", "aria-label": "Chapters, always in view" }, h("ol", null, links.map((link) => h("li", null, link))));
}

function points() {
  const count = h("span");
  const meter = h("progress", { max: 150, value: 0, "aria-label": "Points in this lesson" });
  onChange((now) => { count.textContent = `${now} XP`; meter.value = Math.min(150, now); });
  let undo = null;
  const button = h("button", { type: "button", class: "plain tiny", onclick: () => {
    if (undo) undo();
    undo = undo ? null : reset();
    button.textContent = undo ? "undo reset" : "reset";
  } }, "reset");
  return [h("span", { class: "xp" }, count, meter), button];
}

// The page is drawn after the browser looked for the target of a link such as index.html#symmetry.
function openLink() {
  const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target) requestAnimationFrame(() => target.scrollIntoView({ behavior: "instant", block: "start" }));
}

function section(chapter, kicker) {
  const titled = h("header", null, h("p", { class: "kicker" }, kicker), h("h2", { id: `${chapter.id}-title` }, chapter.title), paragraphs(chapter.intro ?? []));
  const parts = [titled];
  if (chapter.steps) parts.push(layouts(chapter));
  if (chapter.ask && !chapter.steps) parts.push(predict(chapter.ask));
  if (chapter.play) parts.push(h("div", { class: "play" }, chapter.play().element));
  parts.push(...paragraphs(chapter.after ?? []));
  if (chapter.second) parts.push(h("div", { class: "play" }, chapter.second().element));
  parts.push(...paragraphs(chapter.close ?? []));
  if (chapter.custom) parts.push(chapter.custom());
  if (chapter.ask && chapter.steps) parts.push(predict(chapter.ask));
  if (!chapter.steps) titled.classList.add("step"), titled.setAttribute("tabindex", "-1");
  return h("section", { class: "chapter", id: chapter.id, "aria-labelledby": `${chapter.id}-title` }, parts);
}

const stepText = (step, ...more) => h("div", { class: "step", tabindex: "-1" }, h("h3", null, step.title), paragraphs(step.text), more);

// The steps of a chapter in the layout that fits the window. Both layouts are kept, and what is edited in their figures
// is common, so that resizing the window loses nothing.
function layouts(chapter) {
  const roomy = media("(min-width: 1000px) and (prefers-reduced-motion: no-preference)");
  const made = {};
  const box = h("div");
  const draw = () => box.replaceChildren(roomy.matches ? (made.synced ??= synced(chapter)) : (made.inline ??= inline(chapter)));
  roomy.addEventListener("change", draw);
  draw();
  return box;
}

function synced(chapter) {
  const figure = chapter.figure();
  const stage = h("div", { class: "stage", role: "group", "aria-label": `Figure: ${chapter.title}` }, figure.element);
  const steps = chapter.steps.map((step) => stepText(step));
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) pick(steps.indexOf(entry.target));
  }, { rootMargin: "-45% 0px -45% 0px" });
  let now = -1;
  function pick(i) {
    if (i === now) return;
    now = i;
    steps.forEach((step, k) => step.classList.toggle("on", k === i));
    figure.show(i);
  }
  steps.forEach((step) => { seen.observe(step); step.addEventListener("focus", () => pick(steps.indexOf(step))); });
  pick(0);
  return h("div", { class: "synced" }, h("div", null, steps), stage);
}

function inline(chapter) {
  return h("div", { class: "inline" }, chapter.steps.map((step, i) => {
    const figure = chapter.figure();
    figure.show(i);
    return stepText(step, h("div", { class: "stage" }, figure.element));
  }));
}

// → goes to the next step, ← to the previous one; not where these keys do something else.
function stepWithKeys(event) {
  if (event.defaultPrevented || event.altKey || event.ctrlKey || event.metaKey || event.target.closest("input, textarea, select, button, summary, .scroll")) return;
  const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!by) return;
  event.preventDefault();
  const steps = [...document.querySelectorAll(".step")];
  const here = document.activeElement.closest?.(".step");
  const passed = steps.filter((step) => step.getBoundingClientRect().top < window.innerHeight / 2).length - 1;
  const from = here ? steps.indexOf(here) : by > 0 ? passed : passed + (passed < 0 ? 1 : 0);
  const next = steps[Math.max(0, Math.min(steps.length - 1, from + by))];
  next.focus({ preventScroll: true });
  next.scrollIntoView({ block: next.offsetHeight > window.innerHeight * 0.7 ? "start" : "center" });
}
