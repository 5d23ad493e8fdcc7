// Pages that are opened from a folder may not start a worker, and search needs one. This runs the worker's script in a
// hidden frame instead, with the same messages to and fro. Served pages keep the browser's own workers.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.documentElement.append(frame)
      const inner = frame.contentWindow
      inner.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      inner.importScripts = (...urls) => urls.reduce((before, one) => before.then(() => load(inner.document, one)), Promise.resolve())
      this.inner = inner
      this.ready = load(inner.document, url)
    }
    postMessage(data) {
      this.ready.then(() => this.inner.dispatchEvent(new this.inner.MessageEvent("message", { data })))
    }
    terminate() {
      this.inner.frameElement.remove()
    }
  }
  window.Worker = window.IFrameWorker
}

function load(page, url) {
  return new Promise((done, failed) => {
    const script = page.createElement("script")
    script.src = new URL(url, location.href).href
    script.onload = done
    script.onerror = failed
    page.documentElement.append(script)
  })
}
