// Shows when the page is no longer up to date, and keeps a button from being pressed twice.
document.addEventListener("htmx:sse:error", () => { document.getElementById("offline").hidden = false; });
document.addEventListener("htmx:sse:after:connection", () => { document.getElementById("offline").hidden = true; });
document.addEventListener("htmx:after:swap", () => {
  const explanation = document.getElementById("explanation");
  if (explanation) explanation.removeAttribute("aria-busy");
});
document.addEventListener("submit", (event) => {
  for (const button of event.target.querySelectorAll("button")) button.disabled = true;
});
