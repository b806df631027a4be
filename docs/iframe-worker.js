// Lets the search work on pages that are opened from a file. Browsers start no Worker there, so its script is run by a
// hidden frame, and messages are handed over as events. On a server nothing here is used.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super()
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.body.append(this.frame)
      const inside = this.frame.contentWindow
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
      const script = inside.document.createElement("script")
      script.src = new URL(address, document.baseURI)
      this.ready = new Promise((resolve) => script.addEventListener("load", resolve))
      inside.document.head.append(script)
    }

    async postMessage(data) {
      await this.ready
      this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }))
    }

    terminate() {
      this.frame.remove()
    }
  }
}
