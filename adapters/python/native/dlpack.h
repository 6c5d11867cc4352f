/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * DLPack: how tensors pass between libraries. The structs are those of dlpack.h, version 1; that
 * version's promise is that they stay.
 * Source: https://github.com/dmlc/dlpack, include/dlpack/dlpack.h
 */
#ifndef BERTH_DLPACK_H
#define BERTH_DLPACK_H

#include "adapters/python/native/native.h"

typedef struct dl_tensor {
    void *data;
    int32_t device_type, device_id;
    int32_t rank;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides;
    uint64_t offset_nbytes;
} dl_tensor;

typedef struct dl_managed {
    dl_tensor tensor;
    void *context;
    void (*free)(struct dl_managed *self);
} dl_managed;

typedef struct dl_versioned {
    uint32_t major, minor;
    void *context;
    void (*free)(struct dl_versioned *self);
    uint64_t flags;
    dl_tensor tensor;
} dl_versioned;

/* The table of C functions of PyTorch 2.10 and later. */
typedef struct dl_exchange {
    uint32_t major, minor;
    void *previous;
    void *allocate, *from_object;
    int (*to_object)(dl_versioned *tensor, void **object);
    int (*view_object)(void *object, dl_tensor *tensor); /* may be NULL */
} dl_exchange;

enum {
    DL_CPU = 1,
    DL_INT = 0,
    DL_UINT = 1,
    DL_FLOAT = 2,
    DL_BFLOAT = 4,
    DL_COMPLEX = 5,
    DL_BOOL = 6
};

/* The dtypes that every PyTorch takes by DLPack; bits 0: another one. */
typedef struct bpy_dl_type {
    uint8_t code, bits;
} bpy_dl_type;

extern const bpy_dl_type bpy_dl_types[BERTH_DTYPE_COUNT];

#endif /* BERTH_DLPACK_H */
