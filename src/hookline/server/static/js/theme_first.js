// Before anything is drawn, so that a chosen theme does not flash in the other one first.
try {
  const chosen = JSON.parse(localStorage.getItem("hookline.theme"));
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
} catch {
  // A browser that keeps nothing shows the theme of its system.
}
