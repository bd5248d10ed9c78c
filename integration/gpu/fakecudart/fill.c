/* Kernels of torch that fill an array: they make torch.zeros, torch.full and fill_. */
#include <stdint.h>
#include <string.h>
#include "fakecudart.h"

/* The bytes of an element, from how C++ writes its type into a kernel's name. 0: another type. */
static size_t size_of(const char *type) {
    static const struct {
        const char *name;
        size_t size;
    } types[] = {{"a", 1}, {"h", 1}, {"b", 1},  {"s", 2},           {"t", 2},          {"i", 4},
                 {"j", 4}, {"f", 4}, {"l", 8},  {"m", 8},           {"d", 8},          {"N3c104HalfE", 2},
                 {"N3c108BFloat16E", 2},        {"N3c1013Float8_e4m3fnE", 1},          {"N3c1011Float8_e5m2E", 1}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        const size_t n = strlen(types[i].name);
        if (strncmp(type, types[i].name, n) == 0 && type[n] == 'E') return types[i].size;
    }
    return 0;
}

static bool is_one_byte(const unsigned char *value, size_t size) {
    for (size_t i = 1; i < size; i++) {
        if (value[i] != value[0]) return false;
    }
    return true;
}

/* vectorized_elementwise_kernel<width, FillFunctor<T>, array<char *, 1>>(int count, FillFunctor<T> value, array at) */
CUresult fr_fill(const char *kernel, void **args, CUstream stream) {
    static const char functor[] = "11FillFunctorI";
    const char *at = strstr(kernel, functor);
    if (at == NULL || strstr(kernel, "29vectorized_elementwise_kernel") == NULL) return CUDA_ERROR_NOT_SUPPORTED;
    const size_t size = size_of(at + sizeof functor - 1);
    if (size == 0) return CUDA_ERROR_NOT_SUPPORTED;
    const size_t count = (size_t)*(const int *)args[0];
    const unsigned char *value = args[1];
    const CUdeviceptr array = *(const CUdeviceptr *)args[2];
    uint32_t word;
    if (is_one_byte(value, size)) return cuMemsetD8Async(array, value[0], count * size, stream);
    if (size > 4 || count * size % 4 != 0) return CUDA_ERROR_NOT_SUPPORTED;
    for (size_t i = 0; i < 4; i++) ((unsigned char *)&word)[i] = value[i % size];
    return cuMemsetD32Async(array, word, count * size / 4, stream);
}
