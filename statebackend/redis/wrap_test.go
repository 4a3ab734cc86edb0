package redis

import "net"

// setWrap puts something between the store and the server from the next
// connection on; nil takes it away. Trackers dial at the same time.
func (b *Backend) setWrap(fn func(net.Conn) net.Conn) {
	if fn == nil {
		b.wrap.Store(nil)
		return
	}
	b.wrap.Store(&fn)
}
