package counters

import (
	"fmt"
	"reflect"
)

// Add adds the numbers of src to those of dst, those of structs inside included. Fields with the
// tag sum:"-", fields that are not exported, and those that are neither numbers nor structs stay as
// they are.
func Add[T any](dst, src *T) { add(reflect.ValueOf(dst).Elem(), reflect.ValueOf(src).Elem()) }

func add(dst, src reflect.Value) {
	switch dst.Kind() {
	case reflect.Struct:
		for i := range dst.NumField() {
			f := dst.Type().Field(i)
			if (f.IsExported() || f.Anonymous) && f.Tag.Get("sum") != "-" {
				add(dst.Field(i), src.Field(i))
			}
		}
	case reflect.Int, reflect.Int64:
		dst.SetInt(dst.Int() + src.Int())
	case reflect.Uint64:
		dst.SetUint(dst.Uint() + src.Uint())
	case reflect.Float64:
		dst.SetFloat(dst.Float() + src.Float())
	}
}

// number is the value of a metric.
func number(v reflect.Value) float64 {
	switch v.Kind() {
	case reflect.Bool:
		if v.Bool() {
			return 1
		}
		return 0
	case reflect.Int, reflect.Int64:
		return float64(v.Int())
	case reflect.Uint64:
		return float64(v.Uint())
	case reflect.Float64:
		return v.Float()
	}
	panic(fmt.Sprintf("counters: a %s is not a metric", v.Type()))
}
