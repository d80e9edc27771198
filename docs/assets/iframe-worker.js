// Browsers start no worker from a file. Where the site is opened as files, the search runs in a hidden frame instead.
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.started = new Promise(resolve => {
        const frame = document.createElement("iframe")
        frame.hidden = true
        frame.onload = () => {
          const scope = frame.contentWindow
          scope.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
          const script = scope.document.createElement("script")
          script.src = url
          script.onload = () => resolve(scope)
          scope.document.body.append(script)
        }
        document.body.append(frame)
      })
    }

    postMessage(data) {
      this.started.then(scope => scope.dispatchEvent(new MessageEvent("message", { data })))
    }
  }
