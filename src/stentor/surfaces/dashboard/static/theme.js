// Before anything is drawn: the colours that were chosen here, else those of the system.
(() => {
  const chosen = localStorage.getItem("theme");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const apply = () => {
    document.documentElement.dataset.theme = localStorage.getItem("theme") || (dark.matches ? "dark" : "light");
  };
  apply();
  if (!chosen) dark.addEventListener("change", apply);
})();
