// Entry point of every page: load the view named on <html> into <main>.
const root = document.documentElement;
const main = document.getElementById("main");

export const live = root.dataset.mode === "live";

try {
  const view = await import(`./views/${root.dataset.view}.js`);
  await view.show(main, document.getElementById("aside"));
  root.dataset.ready = "true";
} catch (error) {
  const note = document.createElement("p");
  note.className = "notice error";
  note.setAttribute("role", "alert");
  note.textContent = `This page could not be shown: ${error.message}`;
  main.replaceChildren(note);
  root.dataset.ready = "failed";
}
