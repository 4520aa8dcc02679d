// The theme switch of every page: auto follows the system; the choice is kept in this browser. A classic script in the
// head, so that a page is never painted in the other theme first.
{
  const root = document.documentElement;
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
    const button = document.getElementById("theme");
    if (button) button.textContent = `theme: ${theme}`;
  };
  const change = () => {
    use(names[(names.indexOf(theme) + 1) % names.length]);
    try {
      localStorage.setItem("tiebeam.theme", theme);
    } catch {
      // as above
    }
  };
  use(theme);
  document.addEventListener("DOMContentLoaded", () => {
    use(theme);
    document.getElementById("theme").addEventListener("click", change);
  });
}
