// A click on a run's name hides the run in all plots.
for (const button of document.querySelectorAll(".legend button")) {
  button.addEventListener("click", () => {
    const visible = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(visible));
    for (const plot of document.querySelectorAll(".plotly-graph-div")) {
      const lines = plot.data.flatMap((line, place) => line.meta === Number(button.dataset.run) ? [place] : []);
      if (lines.length > 0) Plotly.restyle(plot, { visible }, lines);
    }
  });
}
