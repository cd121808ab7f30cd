// Light or dark paper, before anything is drawn: as the reader's system says, unless told otherwise here.
(() => {
  const KEY = "retro-theme";
  const ORDER = ["auto", "light", "dark"];
  let theme = "auto";
  try {
    theme = localStorage.getItem(KEY) ?? "auto";
  } catch {
    // A browser may keep nothing at all.
  }
  const use = (name) => {
    theme = ORDER.includes(name) ? name : "auto";
    document.documentElement.dataset.theme = theme;
  };
  use(theme);
  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    const label = () => {
      button.textContent = `Theme: ${theme}`;
    };
    label();
    button.addEventListener("click", () => {
      use(ORDER[(ORDER.indexOf(theme) + 1) % ORDER.length]);
      label();
      try {
        localStorage.setItem(KEY, theme);
      } catch {
        // Then the choice holds until the page is left.
      }
    });
  });
})();
