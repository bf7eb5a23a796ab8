// The two files a page loads, each under an address that changes with its content, so that it may be kept for ever.

import { script } from "./assets/script.ts";
import { style } from "./assets/style.ts";

/** FNV-1a, 32 bits: tells two releases of a file apart, nothing more. */
function digest(content: string): string {
  let hash = 0x811c9dc5;
  for (let i = 0; i < content.length; i++) hash = Math.imul(hash ^ content.charCodeAt(i), 0x01000193);
  return (hash >>> 0).toString(16).padStart(8, "0");
}

export const assets = {
  "/assets/dashboard.css": { content: style, type: "text/css; charset=utf-8", etag: `"${digest(style)}"` },
  "/assets/dashboard.js": { content: script, type: "text/javascript; charset=utf-8", etag: `"${digest(script)}"` },
} as const;

export const assetPaths = {
  style: `/assets/dashboard.css?${digest(style)}`,
  script: `/assets/dashboard.js?${digest(script)}`,
} as const;
