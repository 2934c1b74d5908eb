"use strict";
const $ = (id) => document.getElementById(id);
const MESSAGE_S = 0.25;  // audio of a message of a stream
const RATE_HZ = 16000;  // of recordings: models use no more, and an upload has a largest size
const FORM_BYTES = 1000;  // of an upload, in addition to the samples of a recording
let model = "", streams = "none", maxBytes = 0, state = "busy", stop = null, file = null, segments = [];
let remark = "";  // why the recording was stopped, shown until the next one

function enter(next) {  // "idle", "busy" or "recording"
  state = next;
  $("record").disabled = state === "busy";
  $("record").textContent = state === "recording" ? "Stop" : "Record";
  $("elapsed").hidden = state !== "recording";
  $("file").disabled = $("again").disabled = state !== "idle";
}

function say(text, isError = false) {
  $("status").textContent = remark + text;
  $("status").className = isError ? "error" : "";
}

function headers() {
  const token = $("token").value.trim();
  return token ? { Authorization: `Bearer ${token}` } : {};
}

function messageOf(error) {
  return error.type === "authentication_error" ? "Enter the server's token above." : error.message;
}

async function answerOf(path, options) {
  const answer = await fetch(path, options).catch(() => { throw new Error("The server cannot be reached."); });
  const fields = await answer.json().catch(() => ({}));
  if (answer.ok) return fields;
  throw new Error(fields.error ? messageOf(fields.error) : `The server answers with status ${answer.status}.`);
}

async function begin() {
  try {
    const fields = await answerOf("ready");
    ({ model, streams, max_bytes: maxBytes } = fields);
    $("model").textContent = model;
    $("with-token").hidden = !fields.needs_token;
    say("Ready");
    enter("idle");
  } catch (error) {
    say(error.message);
    setTimeout(begin, 2000);
  }
}

function megabytes(bytes, round) {
  return `${round(bytes / 1e4) / 100} MB`;
}

async function take(given, isRecording = false) {
  if (!isRecording) remark = "";
  if (!isRecording && given.size > maxBytes) {
    say(`${given.name} has ${megabytes(given.size, Math.ceil)}, and this server takes at most ` +
      `${megabytes(maxBytes, Math.floor)}. Choose a shorter file, or one that is compressed, such as FLAC.`, true);
    return;
  }
  file = given;
  if ($("player").src) URL.revokeObjectURL($("player").src);
  $("player").src = $("save").href = URL.createObjectURL(file);
  $("save").hidden = !isRecording;
  $("recording").hidden = false;
  await transcribe();
}

async function transcribe() {
  enter("busy");
  say(`Recognising ${file.name} …`);
  $("result").hidden = $("again").hidden = true;
  const form = new FormData();
  form.append("file", file);
  form.append("model", model);
  form.append("response_format", "verbose_json");
  form.append("timestamp_granularities[]", "word");
  form.append("timestamp_granularities[]", "segment");
  try {
    show(await answerOf("v1/audio/transcriptions", { method: "POST", body: form, headers: headers() }));
  } catch (error) {
    say(error.message, true);
    $("again").hidden = false;
  }
  enter("idle");
}

function show(fields) {
  segments = fields.segments;
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
  link.download = `${file.name.replace(/\.[^.]*$/, "") || "transcript"}.${kind}`;
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
    if (result.type === "error") { say(messageOf(result.error), true); return; }
    if (result.type === "final") finals.push(result.text);
    $("partial").textContent = [...finals, ...(result.type === "partial" ? [result.text] : [])].join(" ");
  };
  return socket;
}

function sourceOf(media) {
  const context = new AudioContext({ sampleRate: RATE_HZ });
  try {
    return context.createMediaStreamSource(media);
  } catch {  // a browser that does not resample: it has the rate of the microphone
    context.close();
    return new AudioContext().createMediaStreamSource(media);
  }
}

async function record() {
  if (!navigator.mediaDevices) throw new Error("The browser allows the microphone only on localhost or over https.");
  enter("busy");
  const media = await navigator.mediaDevices.getUserMedia({ audio: true });
  try {
    await recordFrom(media);
  } catch (error) {
    media.getTracks().forEach((track) => track.stop());
    throw error;
  }
}

async function recordFrom(media) {
  const source = sourceOf(media), context = source.context, rate = context.sampleRate;
  await context.audioWorklet.addModule("recorder.js");
  const node = new AudioWorkletNode(context, "recorder");
  const socket = streams === "none" ? null : openStream(rate), blocks = [];
  const most = Math.max(Math.floor((maxBytes - FORM_BYTES) / 2), 0);  // samples of 16 bits
  const longest = clock(Math.floor(most / rate), "").slice(0, 8);
  let unsent = [], num = 0, total = 0;
  node.port.onmessage = (message) => {
    const block = int16(message.data).subarray(0, most - total);
    blocks.push(block);
    unsent.push(block);
    num += block.length;
    total += block.length;
    $("elapsed").textContent = clock(Math.floor(total / rate), "").slice(0, 8);
    if (socket && socket.readyState === WebSocket.OPEN && num >= MESSAGE_S * rate) {
      const all = new Int16Array(num);
      let at = 0;
      for (const each of unsent) { all.set(each, at); at += each.length; }
      socket.send(all);
      [unsent, num] = [[], 0];
    }
    if (total === most && state === "recording") {
      remark = `The recording was stopped after ${longest}: this server takes at most ` +
        `${megabytes(maxBytes, Math.floor)}. `;
      stop().catch(failed);
    }
  };
  source.connect(node);
  $("result").hidden = $("recording").hidden = true;
  $("partial").textContent = "";
  $("elapsed").textContent = "00:00:00";
  enter("recording");
  remark = "";
  say(`Recording … It stops by itself after ${longest}.`);
  stop = async () => {
    enter("busy");
    media.getTracks().forEach((track) => track.stop());
    await context.close();
    if (socket) {
      socket.onmessage = null;
      if (socket.readyState === WebSocket.OPEN) socket.send(JSON.stringify({ type: "end" }));
      else socket.close();
    }
    await take(wav(blocks, rate), true);
  };
}

function failed(error) {
  enter("idle");
  say(error.message, true);
}

$("record").onclick = (event) => {
  if (event.detail > 1) return;  // the second click of a double click
  (state === "recording" ? stop() : record()).catch(failed);
};
$("again").onclick = transcribe;
$("file").onchange = () => { if ($("file").files.length) take($("file").files[0]); $("file").value = ""; };
$("srt").onclick = () => download("srt");
$("vtt").onclick = () => download("vtt");
for (const kind of ["dragover", "dragleave", "drop"]) {
  document.addEventListener(kind, (event) => {
    event.preventDefault();
    $("drop").classList.toggle("over", kind === "dragover" && state === "idle");
    if (kind === "drop" && state === "idle" && event.dataTransfer.files.length) take(event.dataTransfer.files[0]);
  });
}
$("player").ontimeupdate = () => {
  const at = $("player").currentTime;
  for (const word of $("words").querySelectorAll("button")) {
    word.classList.toggle("now", word.dataset.start <= at && at < word.dataset.end);
  }
};
begin();
