// Runs before the first paint, so a chosen theme does not flash in the other one first. Not part of theme.js, because
// modules run too late for that.
try {
  const chosen = JSON.parse(localStorage.getItem("hookline.theme"));
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
} catch {
  // Without storage, the page uses the system's theme.
}
