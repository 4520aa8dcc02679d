// Entry point of every page: load the view named on <html> into <main>.
const root = document.documentElement;
const main = document.getElementById("main");

themeSwitch(document.getElementById("theme"));

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

// auto follows the system; the choice is kept in this browser.
function themeSwitch(button) {
  const names = ["auto", "light", "dark"];
  let theme = "auto";
  try {
    theme = localStorage.getItem("tiebeam.theme") ?? "auto";
  } catch {
    // private windows may refuse storage
  }
  const use = (next) => {
    theme = names.includes(next) ? next : "auto";
    if (theme === "auto") delete root.dataset.theme;
    else root.dataset.theme = theme;
    button.textContent = `theme: ${theme}`;
  };
  button.addEventListener("click", () => {
    use(names[(names.indexOf(theme) + 1) % names.length]);
    try {
      localStorage.setItem("tiebeam.theme", theme);
    } catch {
      // as above
    }
  });
  use(theme);
}
