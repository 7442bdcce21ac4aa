// Exchanges a token for a cookie, and goes to the page.
const form = document.getElementById("login");
const token = document.getElementById("token");
const error = document.getElementById("error");
const enter = document.getElementById("enter");

form.addEventListener("submit", async (submit) => {
  submit.preventDefault();
  enter.disabled = true;
  error.hidden = true;
  try {
    const answer = await fetch("login", {
      method: "POST",
      headers: { "Content-Type": "application/json", "Lockreg-Request": "1" },
      body: JSON.stringify({ token: token.value }),
    });
    if (answer.ok) {
      location.replace(`./${location.search}`); // to what was asked for
      return;
    }
    error.textContent = (await answer.json()).error;
  } catch {
    error.textContent = "The server cannot be reached.";
  }
  error.hidden = false;
  enter.disabled = false;
  token.select();
});
