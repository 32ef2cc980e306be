// While the studio does not answer, nothing on the page may be changed: what was changed would be lost.
const waiting = setInterval(() => {
  if (!window.socket) return;
  clearInterval(waiting);
  const show = (away) => {
    document.body.classList.toggle("away", away);
    document.querySelector(".content").inert = away;
    document.querySelector(".away-note").hidden = !away;
  };
  window.socket.on("disconnect", () => show(true));
  window.socket.on("connect", () => show(false));
}, 50);

// Light or dark as the system has it, until somebody chooses; the choice stays in this browser.
const chosen = localStorage.getItem("nbafl-theme");
const themed = setInterval(() => {
  if (!window.Quasar?.Dark || !window.socket) return; // before that the page has its own first word
  clearInterval(themed);
  if (chosen) window.Quasar.Dark.set(chosen === "dark");
}, 20);
window.studioTheme = () => {
  window.Quasar.Dark.toggle();
  localStorage.setItem("nbafl-theme", window.Quasar.Dark.isActive ? "dark" : "light");
};

// A picture that is drawn as SVG, painted three times as large and taken along as PNG.
window.studioPng = (svg, name) => {
  const image = new Image();
  image.onload = () => {
    const canvas = document.createElement("canvas");
    canvas.width = 3 * image.width;
    canvas.height = 3 * image.height;
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    const link = document.createElement("a");
    link.download = name;
    link.href = canvas.toDataURL("image/png");
    link.click();
  };
  image.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(svg);
};

// A chart is taken along as it is drawn; where its script has not come yet, as soon as it is.
window.studioPicture = async (id, options) => {
  while (!getHtmlElement(id)?._fullLayout) {
    if (!getElement(id)) return; // the chart left the page
    await new Promise((later) => setTimeout(later, 50));
  }
  await getElement(id).Plotly.downloadImage(getHtmlElement(id), options);
};
