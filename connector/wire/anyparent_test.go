package wire

import (
	"bytes"
	"errors"
	"reflect"
	"slices"
	"testing"

	"github.com/tinylib/msgp/msgp"

	"github.com/kvconn/kvconn/connector"
)

// parentField is what a body may say of a parent.
type parentField struct {
	key   string
	value []byte
}

func parentOf(proof []byte) parentField {
	return parentField{"parent", msgp.AppendBytes(nil, proof)}
}

func anyParentOf(value bool) parentField {
	return parentField{"any_parent", msgp.AppendBool(nil, value)}
}

func appendParents(b []byte, fields []parentField) []byte {
	for _, f := range fields {
		b = append(msgp.AppendString(b, f.key), f.value...)
	}
	return b
}

// presentWith is the body of a present request that says that of its parent, partWith that of a move with one part.
func presentWith(fields ...parentField) []byte {
	b := msgp.AppendMapHeader(nil, uint32(1+len(fields)))
	return putHashes(appendParents(b, fields), []connector.Proof{{1}, {2}})
}

func moveWith(fields ...parentField) []byte {
	b := putArray(msgp.AppendMapHeader(nil, 1), "parts", 1)
	b = appendParents(msgp.AppendMapHeader(b, uint32(2+len(fields))), fields)
	return putU32s(putHashes(b, []connector.Proof{{1}, {2}}), "slots", []uint32{4, 5})
}

// decodedParents are the parents that a present request and a move say in these fields.
func decodedParents(fields ...parentField) (present connector.PresentRequest, part connector.KeyedPart, errs []error) {
	var md MoveDecoder
	m, err := md.Decode(moveWith(fields...))
	if len(m.Parts) > 0 {
		part = m.Parts[0]
	}
	return present, part, []error{DecodePresent(presentWith(fields...), &present), err}
}

func TestParentIsOneOrAny(t *testing.T) {
	hash := slices.Repeat([]byte{7}, connector.ProofSize)
	zero := make([]byte, connector.ProofSize)
	for name, tc := range map[string]struct {
		fields    []parentField
		parent    connector.Proof
		anyParent bool
	}{
		"nothing is the root":          {nil, connector.Proof{}, false},
		"an empty one is the root":     {[]parentField{parentOf(nil)}, connector.Proof{}, false},
		"zero is the root":             {[]parentField{parentOf(zero)}, connector.Proof{}, false},
		"a hash":                       {[]parentField{parentOf(hash)}, connector.Proof(hash), false},
		"any":                          {[]parentField{anyParentOf(true)}, connector.Proof{}, true},
		"not any":                      {[]parentField{anyParentOf(false)}, connector.Proof{}, false},
		"a hash, and not any":          {[]parentField{anyParentOf(false), parentOf(hash)}, connector.Proof(hash), false},
		"any beside an empty one":      {[]parentField{anyParentOf(true), parentOf(nil)}, connector.Proof{}, true},
		"any beside zero":              {[]parentField{parentOf(zero), anyParentOf(true)}, connector.Proof{}, true},
		"a field said twice, the last": {[]parentField{parentOf(hash), parentOf(zero), anyParentOf(false), anyParentOf(true)}, connector.Proof{}, true},
	} {
		present, part, errs := decodedParents(tc.fields...)
		if err := errors.Join(errs...); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if present.Parent != tc.parent || present.AnyParent != tc.anyParent || part.Parent != tc.parent || part.AnyParent != tc.anyParent {
			t.Errorf("%s: %+v, %+v", name, present, part)
		}
	}
}

func TestParentsThatSayTwoThingsAreRefused(t *testing.T) {
	hash := slices.Repeat([]byte{7}, connector.ProofSize)
	last := make([]byte, connector.ProofSize)
	last[connector.ProofSize-1] = 1
	for name, fields := range map[string][]parentField{
		"any beside a hash":          {anyParentOf(true), parentOf(hash)},
		"a hash beside any":          {parentOf(hash), anyParentOf(true)},
		"any beside a last bit":      {anyParentOf(true), parentOf(last)},
		"half a hash":                {parentOf(hash[:16])},
		"any beside half a hash":     {anyParentOf(true), parentOf(hash[:16])},
		"a hash and a byte":          {parentOf(append(slices.Clone(hash), 1))},
		"any that is a number":       {{"any_parent", msgp.AppendInt(nil, 1)}},
		"any that is nothing":        {{"any_parent", msgp.AppendNil(nil)}},
		"a parent that is a string":  {{"parent", msgp.AppendString(nil, string(hash))}},
		"a parent that is an array":  {{"parent", msgp.AppendArrayHeader(nil, 0)}},
		"a parent that does not end": {{"parent", []byte{0xc6, 0xff, 0xff, 0xff, 0xff}}},
	} {
		_, _, errs := decodedParents(fields...)
		for i, err := range errs {
			if !errors.Is(err, connector.ErrProtocol) {
				t.Errorf("%s, %d: %v, want a protocol error", name, i, err)
			}
		}
	}
}

// What one message says of a parent is not what the next one says, though both use the same memory.
func TestAnyParentIsForgottenWithItsMessage(t *testing.T) {
	hash := slices.Repeat([]byte{7}, connector.ProofSize)
	var md MoveDecoder
	var present connector.PresentRequest
	for _, fields := range [][]parentField{{anyParentOf(true)}, nil, {parentOf(hash)}, {anyParentOf(true)}, {parentOf(hash)}, nil} {
		m, err := md.Decode(moveWith(fields...))
		if err = errors.Join(err, DecodePresent(presentWith(fields...), &present)); err != nil {
			t.Fatal(err)
		}
		fresh, part, _ := decodedParents(fields...)
		if !reflect.DeepEqual(present, fresh) || !reflect.DeepEqual(m.Parts, []connector.KeyedPart{part}) || m.AnyParent() != part.AnyParent {
			t.Errorf("%v: %+v, %+v", fields, present, m.Parts)
		}
	}
}

// Each part of a move says for itself whether its parent is known.
func TestAnyParentOfSomePartsComesBack(t *testing.T) {
	move := &connector.KeyedMove{ID: "m", Parts: []connector.KeyedPart{
		{Parent: connector.Proof{7}, Hashes: []connector.Proof{{1}}, Slots: []uint32{4}},
		{Group: 1, AnyParent: true, Hashes: []connector.Proof{{2}, {3}}, Slots: []uint32{5, 6}},
		{Hashes: []connector.Proof{{9}}, Slots: []uint32{7}},
		{Group: 2, AnyParent: true, Hashes: []connector.Proof{}, Slots: []uint32{}},
	}}
	body := AppendMove(nil, move)
	got, err := new(MoveDecoder).Decode(body)
	if err != nil || !reflect.DeepEqual(got, move) || !got.AnyParent() {
		t.Errorf("%+v, %v", got, err)
	}
	if again := AppendMove(nil, got); !bytes.Equal(again, body) {
		t.Errorf("%x becomes %x", body, again)
	}
	present := connector.PresentRequest{Request: "r", First: 2, AnyParent: true, Hashes: []connector.Proof{{1}}, Held: 1}
	var asked connector.PresentRequest
	if err := DecodePresent(AppendPresent(nil, &present), &asked); err != nil || !reflect.DeepEqual(asked, present) {
		t.Errorf("%+v, %v", asked, err)
	}
}

// The most parts, each with another parent than the one before, and one more than that.
func TestAnyParentOfTheMostParts(t *testing.T) {
	move := &connector.KeyedMove{ID: "m"}
	for i := range connector.MaxKeyedParts + 1 {
		p := connector.KeyedPart{AnyParent: i%2 == 0, Hashes: []connector.Proof{{byte(i), byte(i >> 8), 1}}, Slots: []uint32{uint32(i)}}
		if !p.AnyParent {
			p.Parent = connector.Proof{9}
		}
		move.Parts = append(move.Parts, p)
	}
	var md MoveDecoder
	if _, err := md.Decode(AppendMove(nil, move)); !errors.Is(err, connector.ErrProtocol) {
		t.Errorf("%v of %d parts", err, len(move.Parts))
	}
	move.Parts = move.Parts[:connector.MaxKeyedParts]
	if got, err := md.Decode(AppendMove(nil, move)); err != nil || !reflect.DeepEqual(got, move) {
		t.Errorf("%d parts, %v", len(got.Parts), err)
	}
}
