// What the page knows and what is chosen. Text is only ever set as text, never as HTML.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const state = { text: 0, protocol: 0, value: "perplexity", control: "both", log: true, off: new Set(), published: new Set(), sort: null, down: false };
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const ON_DARK = { "#000000": "#f2f2f2", "#0072B2": "#4da3e0", "#7F7F7F": "#a6a6a6" };
const NAMES = { perplexity: "perplexity", loss: "loss, nats per token", bits: "bits per byte", ratio: "ratio to truncation" };

const text = () => data.texts[state.text];
const protocol = () => text().protocols[state.protocol];

function make(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) name in node ? (node[name] = value) : node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function tag(n) {
  for (const [unit, name] of [[1 << 20, "M"], [1 << 10, "K"]]) if (n >= unit && (n * 2) % unit === 0) return n / unit + name;
  return String(n);
}

const ink = (colour) => (dark.matches && ON_DARK[colour]) || colour;
const role = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const shows = (curve) => !curve.control || state.control === "both" || curve.control === state.control;
