"use strict";
const $ = (id) => document.getElementById(id);
const MESSAGE_S = 0.25;  // audio of a message of a stream
let model = "", streams = "none", recording = null, segments = [], name = "transcript";

function say(text, isError = false) {
  $("status").textContent = text;
  $("status").className = isError ? "error" : "";
}

function headers() {
  const token = $("token").value.trim();
  return token ? { Authorization: `Bearer ${token}` } : {};
}

async function begin() {
  const answer = await fetch("ready");
  const fields = await answer.json();
  if (!answer.ok) {
    say(fields.error.message);
    setTimeout(begin, 2000);
    return;
  }
  ({ model, streams } = fields);
  $("model").textContent = model;
  $("with-token").hidden = !fields.needs_token;
  say("Ready");
}

async function transcribe(file) {
  say(`Recognising ${file.name} …`);
  $("result").hidden = true;
  const form = new FormData();
  form.append("file", file);
  form.append("model", model);
  form.append("response_format", "verbose_json");
  form.append("timestamp_granularities[]", "word");
  form.append("timestamp_granularities[]", "segment");
  try {
    const answer = await fetch("v1/audio/transcriptions", { method: "POST", body: form, headers: headers() });
    const fields = await answer.json();
    if (!answer.ok) throw new Error(fields.error.message);
    show(fields, file);
  } catch (error) {
    say(error.message, true);
  }
}

function show(fields, file) {
  segments = fields.segments;
  name = file.name.replace(/\.[^.]*$/, "") || "transcript";
  if ($("player").src) URL.revokeObjectURL($("player").src);
  $("player").src = URL.createObjectURL(file);
  const words = [], rows = [];
  for (const word of fields.words) {
    const percent = Math.round(100 * word.confidence);
    const shown = document.createElement("button");
    shown.type = "button";
    shown.textContent = word.word;
    shown.className = percent >= 90 ? "high" : percent >= 60 ? "middle" : "low";
    shown.title = `${word.start.toFixed(2)} to ${word.end.toFixed(2)} s, confidence ${percent} %`;
    shown.setAttribute("aria-label", `${word.word}, ${shown.title}`);
    shown.dataset.start = word.start;
    shown.dataset.end = word.end;
    shown.onclick = () => { $("player").currentTime = word.start; $("player").play(); };
    words.push(shown, " ");
    const row = document.createElement("tr");
    for (const value of [word.word, word.start.toFixed(2), word.end.toFixed(2), percent]) {
      row.insertCell().textContent = value;
    }
    rows.push(row);
  }
  $("words").replaceChildren(...(words.length ? words : ["No word was recognised."]));
  $("rows").replaceChildren(...rows);
  $("partial").textContent = "";
  $("result").hidden = false;
  say(`${fields.words.length} word${fields.words.length === 1 ? "" : "s"} in ${fields.duration.toFixed(1)} s of audio`);
}

function clock(seconds, point) {
  const ms = Math.round(1000 * seconds), pad = (value, size) => String(value).padStart(size, "0");
  return `${pad(Math.floor(ms / 3600000), 2)}:${pad(Math.floor(ms / 60000) % 60, 2)}:` +
    `${pad(Math.floor(ms / 1000) % 60, 2)}${point}${pad(ms % 1000, 3)}`;
}

function subtitles(kind) {
  const escaped = (text) => kind === "srt" ? text.replace(/([<{])/g, "$1\u2060")
    : text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const point = kind === "srt" ? "," : ".";
  const cues = segments.map((each, number) => (kind === "srt" ? `${number + 1}\n` : "") +
    `${clock(each.start, point)} --> ${clock(each.end, point)}\n${escaped(each.text)}\n`);
  return (kind === "vtt" ? "WEBVTT\n\n" : "") + cues.join("\n");
}

function download(kind) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([subtitles(kind)], { type: "text/plain" }));
  link.download = `${name}.${kind}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

function int16(samples) {
  return Int16Array.from(samples, (value) => Math.max(-32768, Math.min(32767, Math.round(32767 * value))));
}

function wav(blocks, rate) {
  const length = blocks.reduce((sum, block) => sum + block.length, 0);
  const view = new DataView(new ArrayBuffer(44 + 2 * length));
  const text = (at, value) => [...value].forEach((letter, n) => view.setUint8(at + n, letter.charCodeAt(0)));
  text(0, "RIFF"); view.setUint32(4, 36 + 2 * length, true); text(8, "WAVEfmt ");
  view.setUint32(16, 16, true); view.setUint16(20, 1, true); view.setUint16(22, 1, true);
  view.setUint32(24, rate, true); view.setUint32(28, 2 * rate, true); view.setUint16(32, 2, true);
  view.setUint16(34, 16, true); text(36, "data"); view.setUint32(40, 2 * length, true);
  let at = 44;
  for (const block of blocks) for (const value of block) { view.setInt16(at, value, true); at += 2; }
  return new File([view], "recording.wav", { type: "audio/wav" });
}

function openStream(rate) {
  const url = new URL("v1/stream", location.href);
  url.protocol = url.protocol.replace("http", "ws");
  const socket = new WebSocket(url), finals = [];
  socket.onopen = () => socket.send(JSON.stringify({ rate_hz: rate, token: $("token").value.trim() }));
  socket.onmessage = (message) => {
    const result = JSON.parse(message.data);
    if (result.type === "error") { say(result.error.message, true); return; }
    if (result.type === "final") finals.push(result.text);
    $("partial").textContent = [...finals, ...(result.type === "partial" ? [result.text] : [])].join(" ");
  };
  return socket;
}

async function record() {
  const media = await navigator.mediaDevices.getUserMedia({ audio: true });
  const context = new AudioContext(), rate = context.sampleRate;
  await context.audioWorklet.addModule("recorder.js");
  const node = new AudioWorkletNode(context, "recorder");
  const socket = streams === "none" ? null : openStream(rate), blocks = [];
  let unsent = [], num = 0;
  node.port.onmessage = (message) => {
    const block = int16(message.data);
    blocks.push(block);
    unsent.push(block);
    num += block.length;
    if (socket && socket.readyState === WebSocket.OPEN && num >= MESSAGE_S * rate) {
      const all = new Int16Array(num);
      let at = 0;
      for (const each of unsent) { all.set(each, at); at += each.length; }
      socket.send(all);
      [unsent, num] = [[], 0];
    }
  };
  context.createMediaStreamSource(media).connect(node);
  $("result").hidden = true;
  $("partial").textContent = "";
  $("record").textContent = "Stop";
  say("Recording …");
  recording = async () => {
    recording = null;
    $("record").textContent = "Record";
    media.getTracks().forEach((track) => track.stop());
    await context.close();
    if (socket && socket.readyState === WebSocket.OPEN) socket.send(JSON.stringify({ type: "end" }));
    await transcribe(wav(blocks, rate));
  };
}

$("record").onclick = () => (recording ? recording() : record()).catch((error) => say(error.message, true));
$("file").onchange = () => { if ($("file").files.length) transcribe($("file").files[0]); $("file").value = ""; };
$("srt").onclick = () => download("srt");
$("vtt").onclick = () => download("vtt");
for (const kind of ["dragover", "dragleave", "drop"]) {
  document.addEventListener(kind, (event) => {
    event.preventDefault();
    $("drop").classList.toggle("over", kind === "dragover");
    if (kind === "drop" && event.dataTransfer.files.length) transcribe(event.dataTransfer.files[0]);
  });
}
$("player").ontimeupdate = () => {
  const at = $("player").currentTime;
  for (const word of $("words").querySelectorAll("button")) {
    word.classList.toggle("now", word.dataset.start <= at && at < word.dataset.end);
  }
};
begin().catch((error) => say(error.message, true));
