package index

// Growing reports whether the table is being moved into a larger hash table.
func (t *Table) Growing() bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.hashes.Next != nil
}

// giveBack gives the system the memory that the growth has emptied. It takes the kernel a while,
// so the table's lock is not held meanwhile.
func (t *Table) giveBack() {
	t.mu.Lock()
	emptied := t.hashes.Emptied
	t.hashes.Emptied = nil
	part, r := t.hashes.EmptiedPart()
	t.mu.Unlock()
	emptied.Free()
	if r != nil {
		r.GiveBack(part)
	}
}
