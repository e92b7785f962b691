for (const button of document.querySelectorAll(".legend button")) {
  button.addEventListener("click", () => {
    const shown = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(shown));
    for (const line of document.querySelectorAll(`.run[data-run="${button.dataset.run}"]`)) {
      line.classList.toggle("hidden", !shown);
    }
  });
}
