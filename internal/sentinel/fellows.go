package sentinel

import "slices"

// peer is another Sentinel as one knows it.
type peer struct{ address, id string }

// split tells the Sentinels of the server at an address from strangers, which are of another deployment that has a master set of
// the same name: those who name the server or watch it, their fellows, and the fellows of these. If nobody names or watches it,
// nobody is a stranger: it may have been replaced long ago.
func split(address string, answers []Answer) (ours, strangers []Answer) {
	for _, a := range answers {
		if address != "" && (a.Names == address || a.Watches == address) {
			ours = append(ours, a)
		} else {
			strangers = append(strangers, a)
		}
	}
	if len(ours) == 0 {
		return strangers, nil
	}
	for i := 0; i < len(ours); i++ { // ours grows
		one := ours[i]
		strangers = slices.DeleteFunc(strangers, func(a Answer) bool {
			if !one.fellow(&a) {
				return false
			}
			ours = append(ours, a)
			return true
		})
	}
	return ours, strangers
}

// fellow reports whether two Sentinels are of the same deployment: one knows the other, or both know a third one. One that is
// nameless is known by its address.
func (a *Answer) fellow(b *Answer) bool {
	return a.knows(b.Who, b.At) || b.knows(a.Who, a.At) ||
		slices.ContainsFunc(a.Fellows, func(p peer) bool { return p.id != "" && b.knows(p.id, "") })
}

func (a *Answer) knows(id, address string) bool {
	return slices.ContainsFunc(a.Fellows, func(p peer) bool {
		return id != "" && p.id == id || address != "" && p.address == address
	})
}
