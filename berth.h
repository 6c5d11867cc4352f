/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * berth.h - save and load PyTorch checkpoints from C.
 *
 * The whole public interface; this header is the manual.
 *
 *     berth_error error;
 *     berth_tree *tree = berth_tree_new(NULL);
 *     berth_value *state = berth_make_ordered_dict(tree);
 *     const int64_t shape[] = {2, 3};
 *     berth_dict_set(state, "weight", berth_make_tensor(tree, &(berth_tensor){
 *         .dtype = BERTH_FLOAT32, .rank = 2, .shape = shape, .data = weight}));
 *     if (berth_save("model.pt", state, NULL, &error) < 0)
 *         die(error.message);
 *     berth_tree_free(tree);
 *
 *     berth_checkpoint *model;
 *     if (berth_open("model.pt", NULL, &model, &error) < 0)
 *         die(error.message);
 *     const berth_tensor *w = berth_find_tensor(model, "weight");
 *     const float *data = berth_tensor_data(model, w, &error);   // lives as long as model
 *     berth_close(model);
 *
 * Rules that hold everywhere:
 *   - A function that can fail returns `int`: 0, or a negative `berth_status`;
 *     or a pointer: NULL on failure. It takes a `berth_error *`, which may be
 *     NULL; when it is not, it is cleared on entry and filled on failure.
 *   - Nothing of a file is ever executed. Nothing here aborts, exits, prints,
 *     or keeps an error in hidden state.
 *   - A forked child may use all of this, whatever the parent's threads were doing, and may read
 *     on through the parent's trees, checkpoints and archives. Jobs, prefetches, row caches
 *     and devices stay with their threads in the parent: BERTH_E_ARGUMENT (devices:
 *     BERTH_E_DEVICE); make them anew. Everything can be freed there, and ends nothing of the
 *     parent's. A child that was forked from within a callback may only exec or exit.
 *   - A thread that is cancelled (pthread_cancel) in a call goes on to its end. SIGXFSZ is held
 *     off in saves; no other signal is touched. Descriptors 0 to 2 are never ours, also where
 *     they are closed. The shared library stays loaded after dlclose.
 *   - Handles are not shared between threads unless their comment says so;
 *     different handles may always be used from different threads.
 *   - Sizes are in bytes and end in `_nbytes`; positions in a file are bytes
 *     from its start and end in `offset`; shapes, strides and storage offsets
 *     are in elements, as in PyTorch.
 *   - Text is UTF-8. Text handed out is NUL-terminated and may hold NULs of its
 *     own where a length is given with it.
 */
#ifndef BERTH_H
#define BERTH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define BERTH_API __attribute__((visibility("default")))
#else
#define BERTH_API
#endif

/* ===================================================================== */
/*  Version                                                              */
/* ===================================================================== */

#define BERTH_VERSION_MAJOR 0
#define BERTH_VERSION_MINOR 1
#define BERTH_VERSION_PATCH 0
#define BERTH_VERSION_STRING "0.1.0"

/* The version of the library that is linked, e.g. "0.1.0". Static. */
BERTH_API const char *berth_version(void);

/* ===================================================================== */
/*  Status and error                                                     */
/* ===================================================================== */

/* One row a status: name, value, what it means in general. */
#define BERTH_STATUS_MAP(X)                                                                        \
    X(ARGUMENT, -1, "invalid argument")                                                            \
    X(OPTION, -2, "invalid option name or value")                                                  \
    X(UNAVAILABLE, -3, "not part of this version")                                                 \
    X(MEMORY, -4, "out of memory")                                                                 \
    X(SYSTEM, -5, "a system call failed")                                                          \
    X(NO_SPACE, -6, "no space left, or a size limit was reached")                                  \
    X(CALLBACK, -7, "a source or sink of the caller failed")                                       \
    X(CANCELLED, -8, "cancelled")                                                                  \
    X(NOT_DURABLE, -9, "in place, but not known to be durable")                                    \
    X(NOT_FOUND, -10, "not found")                                                                 \
    X(AMBIGUOUS, -11, "the name fits more than one value")                                         \
    X(NOT_CHECKPOINT, -12, "not a checkpoint")                                                     \
    X(ARCHIVE, -13, "the archive is broken or ambiguous")                                          \
    X(PICKLE, -14, "the pickle is malformed")                                                      \
    X(FORBIDDEN, -15, "the pickle asks for something that is never run")                           \
    X(TENSOR, -16, "a tensor does not fit its storage")                                            \
    X(OFFSETS, -17, "computed offsets differ from the file's")                                     \
    X(CHECKSUM, -18, "a checksum does not match")                                                  \
    X(TRUNCATED, -19, "the file ends too early")                                                   \
    X(UNSUPPORTED, -20, "a valid thing that cannot be expressed here")                             \
    X(DEVICE, -21, "a device failed, or is not there")                                             \
    X(BUSY, -22, "the cache is held by live tickets")

typedef enum berth_status {
    BERTH_OK = 0,
#define BERTH_STATUS_ROW(name, value, text) BERTH_E_##name = value,
    BERTH_STATUS_MAP(BERTH_STATUS_ROW)
#undef BERTH_STATUS_ROW
} berth_status;

/* `berth_error.offset` when no byte of the file is meant. */
#define BERTH_NO_OFFSET UINT64_MAX

/*
 * What went wrong; the caller's own, on its stack. The first error of an
 * operation wins. `message` is one line without a newline, and names file,
 * record and byte where they are known:
 *   "model.pt: data/3 at byte 1048576: No space left on device"
 */
typedef struct berth_error {
    berth_status code; /* BERTH_OK when nothing went wrong */
    int system_errno;  /* errno of a failed system call, else 0 */
    uint64_t offset;   /* byte in the file, or BERTH_NO_OFFSET */
    char record[128];  /* record name, cut if longer; "" if none is meant */
    char message[640];
} berth_error;

/* The constant text of a status ("out of memory"); never NULL. */
BERTH_API const char *berth_status_text(int status);

/* The name of a status ("BERTH_E_MEMORY"); never NULL. */
BERTH_API const char *berth_status_name(int status);

/* ===================================================================== */
/*  Allocator and log hooks                                              */
/* ===================================================================== */

/*
 * Memory for everything but mapped files and, from 2 MiB on, what storages are read into, which is
 * mapped too, in large pages where there are any. `reallocate` with nbytes 0 frees;
 * with a NULL pointer it allocates; returns NULL when it cannot, the old
 * block then stays. Called from several threads at once.
 */
typedef struct berth_allocator {
    void *(*reallocate)(void *context, void *pointer, size_t nbytes);
    void *context;
} berth_allocator;

/*
 * Receives facts worth telling that are no errors (an option that fell back,
 * offsets taken from the directory). `message` is one line without a newline.
 * Called from several threads at once, also while a handle is locked: it must call nothing of
 * Berth. By default nothing is written anywhere.
 */
typedef void (*berth_log_function)(void *context, const char *message);

/*
 * Sets the allocator (NULL: the C library's) or log function (NULL: none) of
 * the process. Call before anything else; not thread-safe.
 */
BERTH_API void berth_set_allocator(const berth_allocator *allocator);
BERTH_API void berth_set_log(berth_log_function function, void *context);

/* ===================================================================== */
/*  Dtypes                                                               */
/* ===================================================================== */

/*
 * One row a dtype: C name, PyTorch's name, bytes of one item. The sub-byte
 * kinds quint4x2 and quint2x4 hold 2 and 4 elements an item.
 */
#define BERTH_DTYPE_MAP(X)                                                                         \
    X(FLOAT32, "float32", 4)                                                                       \
    X(FLOAT64, "float64", 8)                                                                       \
    X(FLOAT16, "float16", 2)                                                                       \
    X(BFLOAT16, "bfloat16", 2)                                                                     \
    X(INT8, "int8", 1)                                                                             \
    X(INT16, "int16", 2)                                                                           \
    X(INT32, "int32", 4)                                                                           \
    X(INT64, "int64", 8)                                                                           \
    X(UINT8, "uint8", 1)                                                                           \
    X(BOOL, "bool", 1)                                                                             \
    X(COMPLEX64, "complex64", 8)                                                                   \
    X(COMPLEX128, "complex128", 16)                                                                \
    X(QINT8, "qint8", 1)                                                                           \
    X(QUINT8, "quint8", 1)                                                                         \
    X(QINT32, "qint32", 4)                                                                         \
    X(QUINT4X2, "quint4x2", 1)                                                                     \
    X(QUINT2X4, "quint2x4", 1)                                                                     \
    X(COMPLEX32, "complex32", 4)                                                                   \
    X(UINT16, "uint16", 2)                                                                         \
    X(UINT32, "uint32", 4)                                                                         \
    X(UINT64, "uint64", 8)                                                                         \
    X(FLOAT8_E5M2, "float8_e5m2", 1)                                                               \
    X(FLOAT8_E4M3FN, "float8_e4m3fn", 1)                                                           \
    X(FLOAT8_E5M2FNUZ, "float8_e5m2fnuz", 1)                                                       \
    X(FLOAT8_E4M3FNUZ, "float8_e4m3fnuz", 1)                                                       \
    X(FLOAT8_E8M0FNU, "float8_e8m0fnu", 1)                                                         \
    X(FLOAT4_E2M1FN_X2, "float4_e2m1fn_x2", 1)                                                     \
    X(BITS8, "bits8", 1)                                                                           \
    X(BITS16, "bits16", 2)                                                                         \
    X(BITS1X8, "bits1x8", 1)                                                                       \
    X(BITS2X4, "bits2x4", 1)                                                                       \
    X(BITS4X2, "bits4x2", 1)                                                                       \
    X(INT1, "int1", 1)                                                                             \
    X(INT2, "int2", 1)                                                                             \
    X(INT3, "int3", 1)                                                                             \
    X(INT4, "int4", 1)                                                                             \
    X(INT5, "int5", 1)                                                                             \
    X(INT6, "int6", 1)                                                                             \
    X(INT7, "int7", 1)                                                                             \
    X(UINT1, "uint1", 1)                                                                           \
    X(UINT2, "uint2", 1)                                                                           \
    X(UINT3, "uint3", 1)                                                                           \
    X(UINT4, "uint4", 1)                                                                           \
    X(UINT5, "uint5", 1)                                                                           \
    X(UINT6, "uint6", 1)                                                                           \
    X(UINT7, "uint7", 1)

typedef enum berth_dtype {
    BERTH_DTYPE_NONE = 0, /* for storages: untyped */
#define BERTH_DTYPE_ROW(name, text, nbytes) BERTH_##name,
    BERTH_DTYPE_MAP(BERTH_DTYPE_ROW)
#undef BERTH_DTYPE_ROW
        BERTH_DTYPE_COUNT
} berth_dtype;

/* PyTorch's name without "torch.", e.g. "float32"; "untyped" for NONE. Static. */
BERTH_API const char *berth_dtype_name(berth_dtype dtype);

/* The dtype of a name, with or without "torch."; BERTH_DTYPE_NONE if unknown. */
BERTH_API berth_dtype berth_dtype_from_name(const char *name);

/* Bytes of one item; 1 for NONE (untyped storages count bytes). */
BERTH_API size_t berth_dtype_nbytes(berth_dtype dtype);

/* ===================================================================== */
/*  Storages and tensors                                                 */
/* ===================================================================== */

typedef struct berth_tree berth_tree;             /* owns values and storages */
typedef struct berth_value berth_value;           /* one node of a tree */
typedef struct berth_storage berth_storage;       /* bytes that tensors view */
typedef struct berth_checkpoint berth_checkpoint; /* an opened file, with its values */
typedef struct berth_archive berth_archive;       /* an opened file, its records only */

#define BERTH_MAX_RANK 64

/* Flags of a tensor. */
#define BERTH_REQUIRES_GRAD 1u
#define BERTH_CONJ 2u /* the conjugate bit: elements are the conjugates of the stored ones */
#define BERTH_NEG 4u  /* the negative bit */
#define BERTH_META 8u /* on the meta device: shape and dtype, no storage */
/* A flag of a sparse COO tensor, beside BERTH_REQUIRES_GRAD: see berth_value_flags. */
#define BERTH_COALESCED 16u

typedef enum berth_qscheme {
    BERTH_NOT_QUANTIZED = 0,
    BERTH_PER_TENSOR_AFFINE = 1,
    BERTH_PER_TENSOR_SYMMETRIC = 2,
    BERTH_PER_CHANNEL_AFFINE = 3,
    BERTH_PER_CHANNEL_SYMMETRIC = 4,
    BERTH_PER_CHANNEL_AFFINE_FLOAT_QPARAMS = 5
} berth_qscheme;

/*
 * A strided view of a storage. Made by the caller (zero what is not meant),
 * or handed out, then all pointers live as long as the tree or checkpoint.
 */
typedef struct berth_tensor {
    berth_dtype dtype;
    int32_t rank;                   /* 0 to BERTH_MAX_RANK; 0: one element */
    const int64_t *shape;           /* rank items, each >= 0 */
    const int64_t *stride;          /* rank items, each >= 0; NULL when made: contiguous */
    int64_t storage_offset;         /* elements from the storage's start */
    berth_storage *storage;         /* NULL for meta tensors; NULL when made: a storage of just this
                                       tensor over `data`, on "cpu" */
    const void *data;               /* only when made without storage: the elements, which must stay
                                       unchanged until the tree is freed. NULL when handed out: ask
                                       berth_tensor_data */
    uint32_t flags;                 /* BERTH_REQUIRES_GRAD and friends */
    berth_qscheme qscheme;          /* BERTH_NOT_QUANTIZED for most */
    double scale;                   /* per tensor */
    int64_t zero_point;             /* per tensor */
    const berth_value *scales;      /* per channel: tensors of shape[axis] items (LISTs of
                                       numbers in older files) */
    const berth_value *zero_points; /* per channel */
    int64_t axis;                   /* per channel */
} berth_tensor;

/* Number of elements: the product of the shape. */
BERTH_API int64_t berth_tensor_numel(const berth_tensor *tensor);

/* Elements x item size; sub-byte quantized kinds rounded up. */
BERTH_API uint64_t berth_tensor_nbytes(const berth_tensor *tensor);

/* Whether elements lie in row-major order without gaps. */
BERTH_API bool berth_tensor_is_contiguous(const berth_tensor *tensor);

/*
 * A storage of nbytes bytes at `data`, which stay the caller's and must live,
 * unchanged, as long as the tree. `dtype`: what its elements are (decides the
 * storage class in the file); BERTH_DTYPE_NONE: untyped. `location`: "cpu",
 * "cuda:0", …; NULL: "cpu". NULL if out of memory, nbytes is no multiple of the
 * item, or the location is "meta", which has no bytes (berth_tree_error then tells).
 */
BERTH_API berth_storage *berth_storage_new(berth_tree *tree, berth_dtype dtype, const void *data,
                                           uint64_t nbytes, const char *location);

/* Facts of a storage. The key is that of the file, "" for a storage made by the caller. */
BERTH_API const char *berth_storage_key(const berth_storage *storage);
BERTH_API const char *berth_storage_location(const berth_storage *storage);
BERTH_API berth_dtype berth_storage_dtype(const berth_storage *storage);
BERTH_API uint64_t berth_storage_nbytes(const berth_storage *storage);

/* ===================================================================== */
/*  Values                                                               */
/* ===================================================================== */

/*
 * What a checkpoint holds: a tree of Python values. Identity is kept: a node
 * used in two places is written once and read back as one, and tensors that
 * share a storage share its `berth_storage`.
 */
typedef enum berth_kind {
    BERTH_KIND_NONE = 0,
    BERTH_KIND_BOOL = 1,
    BERTH_KIND_INT = 2,
    BERTH_KIND_FLOAT = 3,
    BERTH_KIND_COMPLEX = 4,
    BERTH_KIND_STR = 5,
    BERTH_KIND_BYTES = 6,
    BERTH_KIND_BYTEARRAY = 7,
    BERTH_KIND_LIST = 8,
    BERTH_KIND_TUPLE = 9,
    BERTH_KIND_DICT = 10,
    BERTH_KIND_ORDERED_DICT = 11,
    BERTH_KIND_COUNTER = 12,
    BERTH_KIND_SET = 13,
    BERTH_KIND_SIZE = 14,      /* torch.Size */
    BERTH_KIND_DEVICE = 15,    /* torch.device */
    BERTH_KIND_DTYPE = 16,     /* torch.dtype */
    BERTH_KIND_QSCHEME = 17,   /* torch.per_tensor_affine, … */
    BERTH_KIND_LAYOUT = 18,    /* torch.layout */
    BERTH_KIND_STORAGE = 19,   /* a bare storage */
    BERTH_KIND_TENSOR = 20,    /* strided, quantized or meta */
    BERTH_KIND_SPARSE = 21,    /* COO, CSR, CSC, BSR, BSC */
    BERTH_KIND_NESTED = 22,    /* nested tensor */
    BERTH_KIND_PARAMETER = 23, /* torch.nn.Parameter around a tensor */
    BERTH_KIND_SUBCLASS = 24,  /* a tensor that carries Python attributes */
    BERTH_KIND_GLOBAL = 25,    /* a class or function named, never called */
    BERTH_KIND_CALL = 26       /* inert: what an unknown global was asked to build */
} berth_kind;

typedef enum berth_layout_kind {
    BERTH_SPARSE_COO = 1,
    BERTH_SPARSE_CSR = 2,
    BERTH_SPARSE_CSC = 3,
    BERTH_SPARSE_BSR = 4,
    BERTH_SPARSE_BSC = 5,
    BERTH_STRIDED = 6,
    BERTH_JAGGED = 7
} berth_layout_kind;

/*
 * A new, empty tree. The tree owns every value and storage made in it, and
 * copies all text it is given (not the bytes of tensors). It remembers its
 * first failure (memory, or an argument): makers that fail return NULL, makers
 * given NULL return NULL, and berth_save of a value of that tree then fails
 * with that error, so that building needs no check on every line.
 */
BERTH_API berth_tree *berth_tree_new(berth_error *error);
BERTH_API void berth_tree_free(berth_tree *tree); /* NULL: nothing */

/* 0, or the tree's first failure, copied to *error. */
BERTH_API int berth_tree_error(const berth_tree *tree, berth_error *error);

/* ---- making ---- */

BERTH_API berth_value *berth_make_none(berth_tree *tree);
BERTH_API berth_value *berth_make_bool(berth_tree *tree, bool value);
BERTH_API berth_value *berth_make_int(berth_tree *tree, int64_t value);
/* An integer of any size: two's complement, little-endian, 1 to 255 bytes. */
BERTH_API berth_value *berth_make_bigint(berth_tree *tree, const uint8_t *bytes, size_t nbytes);
BERTH_API berth_value *berth_make_float(berth_tree *tree, double value);
BERTH_API berth_value *berth_make_complex(berth_tree *tree, double real, double imaginary);
/* UTF-8 text of nbytes bytes; surrogates may be encoded as Python's surrogatepass does. */
BERTH_API berth_value *berth_make_str(berth_tree *tree, const char *text, size_t nbytes);
BERTH_API berth_value *berth_make_bytes(berth_tree *tree, const void *bytes, size_t nbytes);
BERTH_API berth_value *berth_make_bytearray(berth_tree *tree, const void *bytes, size_t nbytes);
BERTH_API berth_value *berth_make_list(berth_tree *tree);
BERTH_API berth_value *berth_make_tuple(berth_tree *tree, berth_value *const *items,
                                        size_t n_items);
BERTH_API berth_value *berth_make_dict(berth_tree *tree);
BERTH_API berth_value *berth_make_ordered_dict(berth_tree *tree);
BERTH_API berth_value *berth_make_counter(berth_tree *tree);
BERTH_API berth_value *berth_make_set(berth_tree *tree);
BERTH_API berth_value *berth_make_size(berth_tree *tree, const int64_t *shape, int32_t rank);
/* torch.device(type) when index < 0, else torch.device(type, index). */
BERTH_API berth_value *berth_make_device(berth_tree *tree, const char *type, int64_t index);
/* torch.float32 and its like. `kind` says what `number` is: DTYPE, QSCHEME or LAYOUT. */
BERTH_API berth_value *berth_make_constant(berth_tree *tree, berth_kind kind, int number);
BERTH_API berth_value *berth_make_storage(berth_tree *tree, berth_storage *storage);
/* Copies *tensor, its shape and stride. Checked at once: it must fit its storage. */
BERTH_API berth_value *berth_make_tensor(berth_tree *tree, const berth_tensor *tensor);
BERTH_API berth_value *berth_make_parameter(berth_tree *tree, berth_value *tensor,
                                            bool requires_grad);
/*
 * A sparse tensor. COO: parts = {indices, values}; CSR and BSR: {crow_indices,
 * col_indices, values}; CSC and BSC: {ccol_indices, row_indices, values}, all tensors.
 * `is_coalesced` is for COO.
 */
BERTH_API berth_value *berth_make_sparse(berth_tree *tree, berth_layout_kind layout,
                                         const int64_t *shape, int32_t rank,
                                         berth_value *const *parts, bool is_coalesced);
/* A nested tensor: buffer, sizes, strides, storage offsets: all tensors. */
BERTH_API berth_value *berth_make_nested(berth_tree *tree, berth_value *const parts[4]);
/*
 * `tensor` (a tensor, sparse or Parameter) with Python attributes: `state` is a
 * dict, or what PyTorch pickles there. For a Parameter it is written as
 * _rebuild_parameter_with_state, else as _rebuild_from_type_v2. Saving refuses names
 * that are the tensor's own (`data`, `grad`, `shape`, `__class__`, …), where PyTorch
 * would set another thing than an attribute, and a Parameter around such a tensor.
 */
BERTH_API berth_value *berth_make_subclass(berth_tree *tree, berth_value *tensor,
                                           berth_value *state);

/* ---- filling: 0 or a negative status, also remembered by the tree ---- */

BERTH_API int berth_list_append(berth_value *list, berth_value *item);
BERTH_API int berth_set_add(berth_value *set, berth_value *item);
/* Sets dict[key]; `key` is NUL-terminated. A repeated key keeps its place, as in Python. */
BERTH_API int berth_dict_set(berth_value *dict, const char *key, berth_value *value);
/* The same with any hashable key node. */
BERTH_API int berth_dict_set_value(berth_value *dict, berth_value *key, berth_value *value);
/* Attributes of an OrderedDict (`_metadata` of a state_dict): a dict. Tensors: berth_make_subclass.
 */
BERTH_API int berth_value_set_state(berth_value *value, berth_value *state);

/* ---- copying ---- */

/* Flags of berth_value_copy. */
#define BERTH_COPY_COMPACT 1u /* cut each storage to the bytes that the tensors use */

/*
 * Makes a value in `tree` that equals `value`. So a checkpoint is edited: open it, copy what stays,
 * set what changes, save.
 *
 *     berth_value *root = berth_make_dict(tree);
 *     berth_dict_set(root, "model", berth_value_copy(tree, berth_find(checkpoint, "model", &error),
 * 0)); berth_dict_set(root, "epoch", berth_make_int(tree, 7)); berth_save("model.pt", root, NULL,
 * &error);
 *
 * value: a value of any tree or checkpoint, of `tree` too. It stays as it is.
 * flags: 0, or BERTH_COPY_COMPACT: each new storage then has only the range from the first to the
 *   last byte that a tensor of the copy uses, so that a save of a view writes no more. A storage
 *   that is itself a value (BERTH_KIND_STORAGE) stays whole.
 * Identity: what was one node, or shared a storage, in `value` does so in the copy. Two calls share
 *   nothing with each other: copy in one call what shares storages.
 * Lifetime: nodes are new, bytes are referred to, not copied. The tree or checkpoint of `value`
 * must outlive the copy's last use. Returns NULL if something failed; berth_tree_error says why.
 * Time and memory are in proportion to all of the value's tree. Threads: no other thread may change
 * either tree meanwhile.
 */
BERTH_API berth_value *berth_value_copy(berth_tree *tree, const berth_value *value, uint32_t flags);

/* ---- reading: each is defined for the kinds named, else gives 0, NULL or false ---- */

BERTH_API berth_kind berth_value_kind(const berth_value *value); /* NULL: BERTH_KIND_NONE */
BERTH_API const char *berth_kind_name(berth_kind kind);
/*
 * Returns true and sets what it points to if `value` is of that kind; else false, and 0. An INT
 * that does not fit is read by berth_as_bigint.
 */
BERTH_API bool berth_as_bool(const berth_value *value, bool *result);
BERTH_API bool berth_as_int(const berth_value *value, int64_t *result);
BERTH_API bool berth_as_float(const berth_value *value, double *result);
BERTH_API bool berth_as_complex(const berth_value *value, double *real, double *imaginary);
/* DTYPE, QSCHEME, LAYOUT, whichever `kind` says. The layout of a SPARSE is one, too. */
BERTH_API bool berth_as_constant(const berth_value *value, berth_kind kind, int *number);
/* The two's complement bytes of an INT beyond int64; NULL for one that fits. */
BERTH_API const uint8_t *berth_as_bigint(const berth_value *value, size_t *nbytes);
/* STR: its text. GLOBAL: "module name". DEVICE: "cuda:1". */
BERTH_API const char *berth_as_text(const berth_value *value, size_t *nbytes);
/* BYTES, BYTEARRAY. */
BERTH_API const uint8_t *berth_as_bytes(const berth_value *value, size_t *nbytes);
/* SIZE, SPARSE: the shape; *rank items. */
BERTH_API const int64_t *berth_as_size(const berth_value *value, int32_t *rank);
BERTH_API berth_storage *berth_as_storage(const berth_value *value); /* STORAGE */
/* TENSOR; also what a PARAMETER or SUBCLASS wraps when that is one. */
BERTH_API const berth_tensor *berth_as_tensor(const berth_value *value);

/* LIST, TUPLE, SET, SIZE, dicts: how many items; SPARSE, NESTED: parts; CALL: arguments. */
BERTH_API size_t berth_value_count(const berth_value *value);
/* Item i of anything that berth_value_count counts but dicts; NULL if there is none. */
BERTH_API berth_value *berth_list_at(const berth_value *list, size_t i);
/* Key and item i of a dict, in the order of insertion; either pointer may be NULL. */
BERTH_API bool berth_dict_at(const berth_value *dict, size_t i, berth_value **key,
                             berth_value **item);
/* The value under a text key, or NULL. */
BERTH_API berth_value *berth_dict_get(const berth_value *dict, const char *key);

/* What a value has beside its items. */
typedef enum berth_part {
    BERTH_PART_INNER = 0,      /* PARAMETER, SUBCLASS: the tensor inside. CALL: what is called */
    BERTH_PART_STATE = 1,      /* attributes: ORDERED_DICT, TENSOR, PARAMETER, SUBCLASS, CALL */
    BERTH_PART_LIST_ITEMS = 2, /* CALL: the LIST of what Python would append to the object */
    BERTH_PART_DICT_ITEMS = 3  /* CALL: the DICT of what it would set in it by key */
} berth_part;
/* NULL if there is none. In names: "x.__dict__", "x.list_items.0", "x.dict_items.key". */
BERTH_API berth_value *berth_value_part(const berth_value *value, berth_part part);
/* BERTH_REQUIRES_GRAD: of a tensor or PARAMETER; BERTH_COALESCED: of a SPARSE. */
BERTH_API uint32_t berth_value_flags(const berth_value *value);

/* ---- walking ---- */

/* Where a walk stands; valid during the call that gets it. */
typedef struct berth_walk berth_walk;
struct berth_walk {
    const char *(*path)(const berth_walk *walk); /* see berth_walk_path */
};

/*
 * Returns the path of the value at hand, as berth_find takes it: "['model'][0].__dict__"; "" for
 * the root. Valid until the function of the walker returns. "..." if it is longer than 16 MiB.
 */
static inline const char *berth_walk_path(const berth_walk *walk)
{
    return walk->path(walk);
}

/* Returns 0 to go on, or another number, which ends the walk. */
typedef int (*berth_walk_function)(void *context, const berth_walk *walk, const berth_value *value);

/* What `enter` returns to pass over all that is inside the value. */
#define BERTH_WALK_SKIP 0x7fffffff

/* Flags of a walker. */
#define BERTH_WALK_ITEMS 1u /* only items of containers: no attributes, no parts of tensors */

typedef struct berth_walker {
    size_t struct_size; /* sizeof(berth_walker), or 0: the struct of version 0.2 */
    uint32_t flags;
    berth_walk_function enter; /* a value is met for the first time; what is inside follows */
    berth_walk_function leave; /* all that is inside has been walked; not after BERTH_WALK_SKIP */
    berth_walk_function alias; /* a value is met again; it is not entered again */
    void *context;             /* for the functions, of which each may be NULL */
} berth_walker;

/*
 * Walks all values under `value`, depth first and in order: items of containers (keys of dicts are
 * not walked), the parts of sparse, nested and quantized tensors, then what berth_value_part gives.
 * Values that have no identity (None, numbers) are entered wherever they are met.
 *
 * value: where the walk begins; the first one to be entered.
 * walker: the functions that are called on the way. Read at the start, and not kept.
 * Ownership: the walk owns nothing; values stay their tree's. The functions must not change it.
 * Returns 0, what a function returned to end the walk, BERTH_E_ARGUMENT or BERTH_E_MEMORY. Nothing
 *   recurses, so that values may be nested as deep as a file can hold them. Time is in proportion
 *   to the values, and to the lengths of the paths that are asked for.
 * Threads: several walks may run at once, as long as nobody changes the tree.
 */
BERTH_API int berth_value_walk(const berth_value *value, const berth_walker *walker,
                               berth_error *error);

/* ===================================================================== */
/*  Config                                                               */
/* ===================================================================== */

/*
 * Every option has a name "section.name" (but "debug"), a type, bounds and a
 * default; see berth_config_describe or `berth config`. What is in force, highest first:
 *   1. BERTH_FORCE_<SECTION>_<NAME> in the environment
 *   2. the thread's patch (berth_config_patch)
 *   3. a value set by the program (berth_config_set)
 *   4. BERTH_<SECTION>_<NAME> in the environment
 *   5. the default.
 * Aliases stand for their target at every level ("debug" is also called
 * "serialization_debug": BERTH_SERIALIZATION_DEBUG); "debug" reads
 * TORCH_SERIALIZATION_DEBUG too, of which only "1" counts, as in PyTorch. Of several variables for
 * one option, its own name's wins.
 * The environment is read once, at first use; a bad variable, or one that
 * begins like an option's and is none, fails every operation, by name. A value that is known but
 * whose engine is not part of this version is BERTH_E_UNAVAILABLE, any other BERTH_E_OPTION.
 * Setting is thread-safe. Each operation takes one snapshot as it starts; with debug on it checks
 * loads at least as load.check=headers does. What is forced also wins over a configuration that a
 * call brings.
 */
typedef struct berth_config berth_config; /* one complete configuration; immutable when shared */

/* Set a program value, from text ("off", "4096", "1MiB", "direct") or an integer (bools: 0, 1). */
BERTH_API int berth_config_set(const char *name, const char *text, berth_error *error);
BERTH_API int berth_config_set_int(const char *name, int64_t value, berth_error *error);
/* The value in force on this thread, as text into a buffer, or as an integer. */
BERTH_API int berth_config_get(const char *name, char *text, size_t text_nbytes,
                               berth_error *error);
BERTH_API int berth_config_get_int(const char *name, int64_t *value, berth_error *error);
/* Forget the program's value of one option; NULL: of all. */
BERTH_API int berth_config_reset(const char *name, berth_error *error);

/*
 * Patch this thread: `assignments` is "name=value" separated by white space,
 * all or nothing. Patches nest; each must be undone by one unpatch, on the
 * same thread; one unpatch too many is an error.
 */
BERTH_API int berth_config_patch(const char *assignments, berth_error *error);
BERTH_API int berth_config_unpatch(berth_error *error);

/* What one option is and where its value comes from. All text lives for ever but `value`. */
typedef struct berth_option {
    const char *name;    /* "save.durability" */
    const char *type;    /* "bool", "enum", "int", "bytes", "flags" */
    const char *unit;    /* "bytes", "threads", "" … */
    const char *bounds;  /* "none | file | full", "1 to 32768, a power of two" */
    const char *initial; /* the default, as text */
    const char *help;    /* one paragraph */
    const char *aliases; /* other names, separated by spaces; "" if none */
    const char *source;  /* "default", "environment BERTH_…", "program", "patch", "force …" */
    char value[64];      /* in force on this thread, as text */
    char later[96];      /* "" or which values are not part of this version: they are refused */
} berth_option;

BERTH_API size_t berth_config_count(void);
/* Option i in the table's order. BERTH_E_NOT_FOUND: no such option. */
BERTH_API int berth_config_at(size_t i, berth_option *option, berth_error *error);
BERTH_API int berth_config_describe(const char *name, berth_option *option, berth_error *error);

/* A configuration of its own, a copy of what is in force on this thread; the caller frees it. */
BERTH_API berth_config *berth_config_new(berth_error *error);
BERTH_API void berth_config_free(berth_config *config);
/* Change a configuration of one's own: "name=value …", all or nothing. Not while it is in use. */
BERTH_API int berth_config_apply(berth_config *config, const char *assignments, berth_error *error);

/* How berth_config_print writes. */
typedef enum berth_config_form {
    BERTH_CONFIG_PORTABLE, /* every option, "name=value" a line: berth_config_load reads it */
    BERTH_CONFIG_CHANGED,  /* the same, only what differs from the defaults */
    BERTH_CONFIG_CODE      /* C calls that make the same changes */
} berth_config_form;

/*
 * Writes a configuration (NULL: what is in force) as text; returns the bytes
 * needed without the final NUL, as snprintf does, or a negative status.
 */
BERTH_API int64_t berth_config_print(const berth_config *config, berth_config_form form, char *text,
                                     size_t text_nbytes, berth_error *error);
/* Sets the program's values from portable text, all or nothing; `#` starts a comment. */
BERTH_API int berth_config_load(const char *text, berth_error *error);
/*
 * A hash of all values; equal for equal configurations on every machine and version of this table.
 * NULL: what is in force, or 0 if a variable of the environment is bad.
 */
BERTH_API uint64_t berth_config_hash(const berth_config *config);

/* PyTorch's older setters, kept as names for the options they became. */
BERTH_API int berth_set_crc32_options(bool compute_crc32, berth_error *error);
BERTH_API int berth_set_default_mmap_options(const char *flags, berth_error *error);
BERTH_API int berth_set_default_load_endianness(const char *endianness, berth_error *error);

/* ===================================================================== */
/*  Calls: configuration, progress and statistics of one operation       */
/* ===================================================================== */

/*
 * Told now and then how many bytes of how many are done, from the thread that
 * called the operation, or from the job's own. Anything but 0 cancels: the operation returns
 * BERTH_E_CANCELLED and a target path keeps its old file.
 */
typedef int (*berth_progress_function)(void *context, uint64_t done_nbytes, uint64_t total_nbytes);

/* What an operation did. */
typedef struct berth_stats {
    double plan_seconds;     /* pickling and computing the layout; for loads: parsing */
    double copy_seconds;     /* snapshots of jobs: copying the tensors */
    double transfer_seconds; /* reading or writing */
    double sync_seconds;     /* making it durable */
    double total_seconds;
    /*
     * In transfer_seconds, of all workers together: waiting for copies from or to devices; the
     * processor's work, which is summing, swapping and, for saves, putting tiles together; reading
     * or writing. limited_by tells which of these took most, "device", "processor" or "disk": only
     * a faster one makes the like faster. NULL: nothing was moved. Static.
     */
    double device_seconds, render_seconds, disk_seconds;
    double crc32_seconds; /* of render_seconds: summing; saves time some of the blocks */
    const char *limited_by;
    uint64_t device_nbytes; /* of asked_nbytes, what lay on devices, or came to them now */
    uint64_t asked_nbytes;  /* what the caller wanted moved */
    uint64_t moved_nbytes;  /* what was read or written */
    uint64_t n_requests;    /* reads or writes */
    uint64_t n_records;
    uint64_t n_storages;
    uint64_t memory_nbytes;  /* saves: buffers of all workers, at most io.memory_nbytes; loads:
                                memory of the host that was made for what was read, and
                                staging buffers */
    bool calculated_offsets; /* loads: storages were found by arithmetic */
    const char *method;      /* "buffered", "direct", "direct, then buffered" (a direct write was
                                refused), "map", "read", "direct", "direct, then read", "memory",
                                "mixed" (storages differ), … Static */
    const char *reason;      /* why that method. Static */
} berth_stats;

/* What is known of a record's CRC. */
typedef enum berth_crc_verdict {
    BERTH_CRC_UNCHECKED, /* nobody has looked */
    BERTH_CRC_GOOD,      /* it is that of the bytes; saves: computed */
    BERTH_CRC_ABSENT,    /* none is recorded (or the record is empty) */
    BERTH_CRC_BAD
} berth_crc_verdict;

/* What became of one storage. */
typedef struct berth_storage_stats {
    /*
     * Static words. Saves: "direct", "buffered", "direct, then buffered": written from where the
     * bytes lie; "direct, copied", "buffered, copied": through a buffer; "direct, from device",
     * "buffered, from device": likewise, through a staging buffer; "none". Loads: "map",
     * "read", "direct", "direct, then read", "memory"; "none": not asked for yet.
     */
    const char *method;
    const char *reason; /* why that one and no better one. Static */
    const char *place;  /* loads: where it goes, or is: "cpu", "cuda:0", … Lives for ever */
    uint64_t nbytes;
    uint64_t moved_nbytes; /* that were read or written */
    berth_crc_verdict crc32;
} berth_storage_stats;

/* How to carry out one operation. NULL or zeros: what is in force, silent, no statistics. */
typedef struct berth_params {
    const berth_config *config; /* NULL: what is in force on this thread */
    berth_progress_function progress;
    void *progress_context;
    berth_stats *stats; /* filled on success and on failure */
    /* Saves to a path: the top folder inside; NULL: from the path's name, as PyTorch does. What a
       function's own archive_name says goes first. PyTorch opens no file where it has more than 510
       bytes: BERTH_E_ARGUMENT. */
    const char *archive_name;
    /* Saves: the first n_storage_stats storages in the file's order, filled when stats are, which
       tell how many there are. */
    berth_storage_stats *storage_stats;
    size_t n_storage_stats;
} berth_params;

/* ===================================================================== */
/*  Saving                                                               */
/* ===================================================================== */

/*
 * What torch.save(value, path) does, atomically: `path` holds the old file or
 * the whole new one, whatever happens, and when this returns 0 it is as durable
 * as save.durability says. A failure leaves no temporary file. The tensors'
 * bytes must not change until this returns.
 *
 * Symbolic links are followed. What could not be written in place (a read-only
 * file, a folder, a device) is not replaced, nor what the rename would refuse:
 * in a sticky or append-only folder, under a mount. A path such as /dev/fd/3
 * that leads to a file without a name (memfd_create, O_TMPFILE, removed) is
 * written in place, and a failure leaves there what was written. Never save to
 * such a path what is mapped from it.
 *
 * The new file has owner, group, mode, ACL, security label and user.* attributes
 * of the one it replaces (but set-id bits, and checksums of the old bytes), before
 * the first byte is written. So nobody can read or write it who could not read or
 * write the old one. What this process may not give to it (another owner, a group
 * it is not in) is passed on by an ACL, or is left out, and the log says so. Where
 * the old owner could lose access by that, the save is refused (EPERM).
 *
 * Until then the bytes are in a temporary beside it, ".berth-<16 hex digits>-<0 to
 * 15>.tmp". One that a killed save of the same path left is removed by the next, if
 * it certainly is dead: same host, same container, no such process. berth_clean
 * removes others.
 */
BERTH_API int berth_save(const char *path, const berth_value *value, const berth_params *call,
                         berth_error *error);

/*
 * Where else a checkpoint can go. `write` gets bytes for a position and
 * returns 0, or an errno value; it may be called from several threads at once
 * unless `in_order`, then from one, with offsets that follow each other.
 * Durability is the caller's.
 */
typedef struct berth_sink {
    int (*write)(void *context, const void *buffer, size_t nbytes, uint64_t offset);
    void *context;
    bool in_order;
} berth_sink;

/*
 * Like berth_save, but into a sink. `archive_name`: the top folder inside,
 * NULL for "archive".
 */
BERTH_API int berth_save_sink(const berth_sink *sink, const char *archive_name,
                              const berth_value *value, const berth_params *call,
                              berth_error *error);
/*
 * Like berth_save, but into a descriptor at its current position, in order, so
 * that pipes and sockets will do. It is not closed and not synced. SIGPIPE is
 * the caller's to ignore.
 */
BERTH_API int berth_save_fd(int fd, const char *archive_name, const berth_value *value,
                            const berth_params *call, berth_error *error);
/* Like berth_save, but into memory: *bytes is the caller's, to be freed by berth_free. */
BERTH_API int berth_save_memory(void **bytes, size_t *nbytes, const char *archive_name,
                                const berth_value *value, const berth_params *call,
                                berth_error *error);
/* Frees what berth_save_memory gave. NULL: nothing. */
BERTH_API void berth_free(void *bytes);

/* ---- files of other formats ---- */

/*
 * A file of nbytes bytes, of any format, that takes its path's place whole or not at all, with all
 * that berth_save says of paths, rights and durability. Bytes that nobody writes are zeros.
 */
typedef struct berth_atomic_file berth_atomic_file;

/*
 * Begins one, and takes its room, as far as the file system can tell. *file is the caller's, to be
 * ended by commit or abort; NULL on failure. Of `call` counts: config (save.durability); stats, and
 * progress, which commit asks once, before the rename, whether to cancel. Both must live until
 * then.
 */
BERTH_API int berth_atomic_begin(const char *path, uint64_t nbytes, const berth_params *call,
                                 berth_atomic_file **file, berth_error *error);
/*
 * Writes nbytes bytes from `offset` on, through the page cache. From any threads at once.
 * BERTH_E_ARGUMENT: they do not fit. After another failure commit fails with it, too.
 */
BERTH_API int berth_atomic_write(berth_atomic_file *file, const void *bytes, size_t nbytes,
                                 uint64_t offset, berth_error *error);
/* Makes it durable and puts it in place; frees `file`, after a failure too. */
BERTH_API int berth_atomic_commit(berth_atomic_file *file, berth_error *error);
/* Leaves the old file as it is; frees `file`. NULL: nothing. */
BERTH_API void berth_atomic_abort(berth_atomic_file *file);

/* ---- temporaries that were left behind ---- */

/* Whether the save that a temporary belongs to goes on. */
typedef enum berth_temporary_state {
    BERTH_TEMPORARY_UNKNOWN, /* of another host or container, from before a reboot, or its file
                                system keeps no owner */
    BERTH_TEMPORARY_ALIVE,
    BERTH_TEMPORARY_DEAD
} berth_temporary_state;

/* One of a folder. All pointers are valid during the call only. */
typedef struct berth_temporary {
    const char *name;
    uint64_t nbytes;
    double age_seconds; /* since it was last written to */
    berth_temporary_state state;
    const char *owner; /* "1 <boot id> <pid namespace> <time namespace> <pid> <start>"; "": none */
    bool removed;
    const berth_error *error; /* why it could not be removed; NULL: it was not tried, or it was */
} berth_temporary;

typedef void (*berth_temporary_function)(void *context, const berth_temporary *temporary);

/* Remove those that are dead, and unknown ones that nobody has written to for min_age_seconds. */
#define BERTH_CLEAN_REMOVE 1u

/*
 * Reports each temporary of saves in a folder, in no order. `flags`: 0 or BERTH_CLEAN_REMOVE. Never
 * removes one that is known to be alive. For unknown ones, choose an age that no save of another
 * host takes between two writes: a day is safe. A save whose temporary is removed nevertheless
 * fails, and leaves the old file. Fails where the folder cannot be listed. Thread-safe.
 */
BERTH_API int berth_clean(const char *folder, uint32_t flags, double min_age_seconds,
                          berth_temporary_function report, void *context, berth_error *error);

/* ---- records: the container level ---- */

/* One record of an archive. Handed out: text lives as long as the archive or plan. */
typedef struct berth_record {
    const char *name; /* without the top folder: "data/3" */
    uint64_t nbytes;
    uint64_t header_offset; /* of the local header */
    uint64_t offset;        /* of the data */
    uint32_t crc32;         /* 0: not computed (or empty) */
    uint16_t method;        /* 0 stored, 8 deflated */
} berth_record;

/* One record to be written. */
typedef struct berth_new_record {
    const char *name; /* without the top folder */
    uint64_t nbytes;
    const void *data; /* nbytes bytes; or NULL, then: */
    /* Fills the buffer with bytes [offset, offset + nbytes) of the record: 0 or an errno
       value. Called from several threads at once. */
    int (*read)(void *context, void *buffer, size_t nbytes, uint64_t offset);
    void *context;
    bool no_crc32; /* write 0 for this record's CRC even when save.compute_crc32 is on */
    /* What the bytes must sum to, where they come from a place that knows: other bytes fail the
       save (BERTH_E_CHECKSUM). 0: not known. Looked at where sums are computed. */
    uint32_t crc32;
} berth_new_record;

/* The records are all there is: no bookkeeping record is added. */
#define BERTH_RECORDS_COMPLETE 1u

/*
 * Like berth_save, for a caller with its own pickler: records[0] is "data.pkl",
 * the rest "data/<key>" or anything else. Unless BERTH_RECORDS_COMPLETE is given,
 * `.format_version`, `.storage_alignment`, `byteorder`, `version` and
 * `.data/serialization_id` are added where PyTorch has them; save.byteorder must then be this
 * machine's, as records are written as they are. A given `.storage_alignment` must say what
 * save.storage_alignment is. `archive_name` NULL: from the path, as PyTorch does.
 */
BERTH_API int berth_save_records(const char *path, const char *archive_name,
                                 const berth_new_record *records, size_t n_records, uint32_t flags,
                                 const berth_params *call, berth_error *error);
BERTH_API int berth_save_records_sink(const berth_sink *sink, const char *archive_name,
                                      const berth_new_record *records, size_t n_records,
                                      uint32_t flags, const berth_params *call, berth_error *error);

/* ---- jobs: saves that go on while the caller does ---- */

/*
 * A save that a thread of its own carries out. Two events: *staged*, nothing of the caller's
 * memory is read any more, it may change its tensors; and *done*, what the return of berth_save
 * means: as durable as save.durability says.
 *
 * What must live how long:
 * - until begin returns: path, archive_name, *call and its config, *sink, the array of records and
 *   their names
 * - until staged: the bytes of tensors and records, unchanged; the tree or checkpoint of the value,
 *   which may grow meanwhile but is saved as it was at begin
 * - until done: the contexts of sink and progress, call->stats and call->storage_stats
 * - until berth_job_free: the job
 *
 * Several jobs may run at once, also on one path: each is whole, the last one to end stays. Each
 * has its own workers and buffers; io.threads and io.memory_nbytes bound each of them. Where
 * nothing else is said, a job's functions may be called from any threads at once. The sink and the
 * progress function are called by the job, maybe before begin has returned; they may cancel it, but
 * neither wait for it nor free it. A process that ends, ends its jobs: then paths hold what they
 * held.
 */
typedef struct berth_job berth_job;

/*
 * Copy the tensors before begin returns, so that the job is staged at once. Costs the time of
 * the copy, by io.threads workers, and as much memory as the file has bytes until the job is done.
 * It counts for io.memory_nbytes: where that is set and leaves too little, begin is BERTH_E_MEMORY
 * and tells the bytes missing. Without this flag nothing is copied but what is being written: the
 * job is staged when its last byte is written, before it is synced, and needs no more than
 * berth_save; if all tensors lie on devices, already when the last of them is copied.
 */
#define BERTH_SAVE_SNAPSHOT 0x100u

/*
 * Begins what berth_save does. When it returns 0, *job is the caller's, to be freed by
 * berth_job_free; the folder is open and the room is taken, as far as the file system can tell.
 * Otherwise *job is NULL, nothing goes on and nothing is left. `flags`: 0 or BERTH_SAVE_SNAPSHOT.
 */
BERTH_API int berth_save_begin(const char *path, const berth_value *value, uint32_t flags,
                               const berth_params *call, berth_job **job, berth_error *error);
/*
 * Like berth_save_begin, what berth_save_sink does. Into a descriptor or memory, too: by a sink
 * whose write is write(2), in order, or a copy to its place in berth_plan_nbytes bytes.
 */
BERTH_API int berth_save_sink_begin(const berth_sink *sink, const char *archive_name,
                                    const berth_value *value, uint32_t flags,
                                    const berth_params *call, berth_job **job, berth_error *error);
/* Like berth_save_begin, what berth_save_records does, also with BERTH_RECORDS_COMPLETE. */
BERTH_API int berth_save_records_begin(const char *path, const char *archive_name,
                                       const berth_new_record *records, size_t n_records,
                                       uint32_t flags, const berth_params *call, berth_job **job,
                                       berth_error *error);
/* Like berth_save_begin, what berth_save_records_sink does. */
BERTH_API int berth_save_records_sink_begin(const berth_sink *sink, const char *archive_name,
                                            const berth_new_record *records, size_t n_records,
                                            uint32_t flags, const berth_params *call,
                                            berth_job **job, berth_error *error);

/*
 * Waits until the job is staged: 0, even if it fails later; or the error it ended with before, then
 * nothing of the caller's is read any more either.
 */
BERTH_API int berth_job_wait_staged(berth_job *job, berth_error *error);
/* Waits until the job is done: what berth_save would have returned. May be asked again. */
BERTH_API int berth_job_wait(berth_job *job, berth_error *error);
/* Whether the wait would be none. */
BERTH_API bool berth_job_is_staged(berth_job *job);
BERTH_API bool berth_job_is_done(berth_job *job);
/* Bytes written, told about ten times a second, and of the whole file. Either may be NULL. */
BERTH_API void berth_job_progress(berth_job *job, uint64_t *done_nbytes, uint64_t *total_nbytes);
/*
 * Asks the job to stop, and does not wait. No write is begun any more, those under way end; the
 * job then ends with BERTH_E_CANCELLED. True: the path keeps its old file. False: too late, the
 * new file takes its place, or all is written to the sink. The answer stays the same.
 */
BERTH_API bool berth_job_cancel(berth_job *job);
/*
 * Waits until the job is done, and frees it: what was not cancelled is not lost. An error that
 * nobody has waited for goes to the log. The last call on a job. NULL: nothing.
 */
BERTH_API void berth_job_free(berth_job *job);

/* ---- plans ---- */

/* What a save would write, before a byte is written. Immutable: any thread may ask. */
typedef struct berth_plan berth_plan;

/*
 * Plans berth_save of `value` to `path` (only its name is looked at; NULL: "archive"). The
 * plan is the caller's to free, and needs the value no more. NULL on failure.
 */
BERTH_API berth_plan *berth_plan_new(const char *path, const berth_value *value,
                                     const berth_params *call, berth_error *error);
BERTH_API void berth_plan_free(berth_plan *plan);             /* NULL: nothing */
BERTH_API uint64_t berth_plan_nbytes(const berth_plan *plan); /* exact size of the file */
BERTH_API size_t berth_plan_count(const berth_plan *plan);    /* records */
/* Record i in the file's order; its crc32 is 0, no byte has been looked at. BERTH_E_NOT_FOUND: no
 * such record. */
BERTH_API int berth_plan_at(const berth_plan *plan, size_t i, berth_record *record);

/* ===================================================================== */
/*  Loading                                                              */
/* ===================================================================== */

/*
 * What torch.load(path, weights_only=True, mmap=True) does. Opens, parses and
 * checks as load.check says; tensors' bytes are mapped or read when asked for.
 * What each level sees:
 * - none: the head alone. Storages are where the layout puts them; what lies behind the last record
 *   of the head is not looked at.
 * - directory: the end records and all entries of the directory; that storages are where the layout
 *   puts them, and that every byte of the file belongs to an entry, so that no other reader finds
 *   records or another archive between; of what is no storage, local header and descriptor.
 * - headers: local headers and descriptors of storages, too.
 * - data: the CRC of every record, too.
 *
 * With load.check=data no byte is handed out before the CRC of its record was compared: by open,
 * where storages are mapped (call->progress is told how far it is, and may cancel); else when a
 * storage, or a range of it, is first asked for.
 * With load.prefetch=populate, advise or read, what berth_prefetch_begin does goes on behind, until
 * berth_close: asking for a tensor's bytes is the consumer's step, and waits for nothing.
 * Truncating a file while it is mapped makes the kernel kill the process
 * (SIGBUS) on the next touch: where that may happen, set load.mmap=off, and
 * bytes are read into memory instead. Replacing it by rename, as berth_save
 * does, is safe.
 */
BERTH_API int berth_open(const char *path, const berth_params *call, berth_checkpoint **checkpoint,
                         berth_error *error);
/* Like berth_open. The descriptor is duplicated, not kept. */
BERTH_API int berth_open_fd(int fd, const berth_params *call, berth_checkpoint **checkpoint,
                            berth_error *error);
/* Like berth_open. The bytes must live, unchanged, until berth_close. */
BERTH_API int berth_open_memory(const void *bytes, size_t nbytes, const berth_params *call,
                                berth_checkpoint **checkpoint, berth_error *error);

/*
 * Bytes from anywhere. `read` fills the whole buffer from a position and returns
 * 0 or an errno value; called from several threads at once.
 */
typedef struct berth_source {
    uint64_t nbytes;  /* size of the whole */
    const char *name; /* for messages; NULL: "source" */
    int (*read)(void *context, void *buffer, size_t nbytes, uint64_t offset);
    void *context;
} berth_source;

/* Like berth_open. *source is copied, its context must live until berth_close. */
BERTH_API int berth_open_source(const berth_source *source, const berth_params *call,
                                berth_checkpoint **checkpoint, berth_error *error);

/* Closes and frees everything handed out of the checkpoint. NULL: nothing. */
BERTH_API void berth_close(berth_checkpoint *checkpoint);

/* The value that was saved. Lives as long as the checkpoint. Any thread may read it. */
BERTH_API const berth_value *berth_root(const berth_checkpoint *checkpoint);

/*
 * The value under a name ("model.0.weight": dict keys and list indices joined
 * by dots), or under a path ("['model'][0]['a.b']"). BERTH_E_NOT_FOUND says what is
 * near; BERTH_E_AMBIGUOUS names both paths, or the step that two keys have: NaNs, and tuples
 * that are shown alike as they are long. A tensor goes before other values of its name; the empty
 * name is the root. Any thread may ask.
 */
BERTH_API const berth_value *berth_find(const berth_checkpoint *checkpoint, const char *name,
                                        berth_error *error);
/* Like berth_find, for tensors and Parameters; NULL if there is none, or no single one. Why not,
 * only berth_find says. */
BERTH_API const berth_tensor *berth_find_tensor(const berth_checkpoint *checkpoint,
                                                const char *name);

/* One tensor of the list. Text lives until the next call on this checkpoint. */
typedef struct berth_named_tensor {
    const char *name; /* short, "a.0.b"; or the path where two tensors have that name, or where it
                         is empty, begins as a path does, holds a NUL or what is no UTF-8 */
    const char *path; /* "['a'][0]['b']" */
    const berth_tensor *tensor;
    const berth_value *value; /* the node met there: TENSOR, PARAMETER, SUBCLASS */
    uint64_t offset;          /* first element's byte in the file; BERTH_NO_OFFSET: meta */
    bool parameter;
    bool requires_grad;
} berth_named_tensor;

/*
 * All tensors in the order of a walk that enters each container once. The parts
 * of sparse tensors are listed as "name.indices", "name.values", ….
 */
BERTH_API size_t berth_tensor_count(const berth_checkpoint *checkpoint);
BERTH_API int berth_tensor_at(berth_checkpoint *checkpoint, size_t i, berth_named_tensor *named,
                              berth_error *error);

/*
 * The first element of a tensor (its strides apply), in this machine's byte order,
 * aligned for its dtype. Lives as long as the checkpoint. Mapped copy-on-write
 * by default, so that casting const away and writing changes no file; with
 * load.mmap_flags=shared it is read-only. BERTH_E_ARGUMENT where its place is a device
 * (berth_choose_places). Thread-safe.
 */
BERTH_API const void *berth_tensor_data(berth_checkpoint *checkpoint, const berth_tensor *tensor,
                                        berth_error *error);
/* Like berth_tensor_data, for a whole storage. */
BERTH_API const void *berth_storage_data(berth_checkpoint *checkpoint, const berth_storage *storage,
                                         berth_error *error);
/*
 * Copies elements [first, first + n) of the row-major order into `buffer`
 * (n x item size bytes), whatever the strides. For sub-byte quantized kinds only whole
 * contiguous tensors. Of a contiguous tensor no more is read than these; long ranges by io.threads
 * workers, from the map, or where it is not mapped as its method says: past the page cache through
 * buffers of io.memory_nbytes at most, or straight into `buffer`. From a device, if that is where
 * they are. Thread-safe.
 */
BERTH_API int berth_tensor_read(berth_checkpoint *checkpoint, const berth_tensor *tensor,
                                int64_t first, int64_t n, void *buffer, berth_error *error);

/* ---- storages: which, how, and what became of them ---- */

/*
 * Which tensors of a checkpoint are meant. NULL or zeros: everything in it. Text and array are the
 * caller's, for the time of the call.
 */
typedef struct berth_selection {
    const char *pattern;                /* glob over names as `berth ls` shows them: * ? [...], as
                                           fnmatch(3), * also takes dots; NULL: none. One that fits
                                           no tensor is BERTH_E_NOT_FOUND */
    const berth_tensor *const *tensors; /* and these, of this checkpoint */
    size_t n_tensors;
} berth_selection;

/* How a storage becomes memory: values of load.method. */
typedef enum berth_load_method {
    BERTH_LOAD_AUTO,
    BERTH_LOAD_MAP,
    BERTH_LOAD_READ,
    BERTH_LOAD_DIRECT
} berth_load_method;

/* A rule fits a storage that all of it fits; zeros fit any. */
typedef struct berth_method_rule {
    const char *pattern;  /* glob: one of the names of the tensors that view it. NULL: any */
    const char *location; /* glob over where it was, "cuda*". NULL: any */
    uint64_t least_nbytes;
    uint64_t most_nbytes; /* 0: no bound */
    berth_load_method method;
} berth_method_rule;

/*
 * Says for each storage how it becomes memory, in the place of load.method: by the first rule that
 * fits it; storages that none fits go by load.method again. Only for storages that are not memory
 * yet. Nothing is read. One load may mix methods: map what the processor keeps, read directly what
 * goes elsewhere. load.mmap=off still maps nothing, and what cannot be is read: berth_storage_stats
 * tells. BERTH_E_ARGUMENT: a method that there is not. Thread-safe.
 */
BERTH_API int berth_choose_methods(berth_checkpoint *checkpoint, const berth_method_rule *rules,
                                   size_t n_rules, berth_error *error);
/* Says how one storage becomes memory. */
typedef berth_load_method (*berth_method_function)(void *context, const berth_storage *storage);

/* The same by a function, asked once a storage, on the caller's thread; views of another storage,
 * which only files from before 1.6 have, go with it. */
BERTH_API int berth_choose_methods_by(berth_checkpoint *checkpoint, berth_method_function choose,
                                      void *context, berth_error *error);

/*
 * Brings all storages of the selected tensors into memory, so that berth_tensor_data and
 * berth_storage_data need not wait for it: io.threads workers read neighbours in the file together,
 * in pieces of io.chunk_nbytes, into aligned memory in large pages; what is mapped is made present.
 * With load.check=data CRCs of what is brought are compared on the way (a bad one is
 * BERTH_E_CHECKSUM). All or nothing: after a failure, or a cancel by call->progress, no storage is
 * memory that was not before, unless another call brought it, and it may be tried again. A progress
 * function must not ask for data of the same checkpoint.
 *
 * How each becomes memory, that load.method or berth_choose_methods say. `auto`: a file that is in
 * memory already (samples tell) is mapped; a cold one on a disk, if 64 MiB or more are asked for
 * and memory is really free for them, is read past the page cache; where memory is short it is
 * mapped; else it is read. With load.mmap=off, and on file systems of networks and processes
 * (FUSE), where others may cut a mapped file short, it is read. BERTH_E_MEMORY, before anything is
 * read, names the first tensor that does not fit, and the bytes missing.
 *
 * What berth_choose_places sends to devices is brought there, and no address of the host's is made.
 *
 * call->config NULL: the configuration that the checkpoint was opened with. Statistics:
 * asked_nbytes are those of the storages meant, moved_nbytes those read now: gaps up to 32 KiB
 * between neighbours are read along, and storages that were memory are not read again. Thread-safe,
 * beside everything else that is: a storage that another thread is bringing is waited for.
 */
BERTH_API int berth_load(berth_checkpoint *checkpoint, const berth_selection *selection,
                         const berth_params *call, berth_error *error);

/*
 * What became of one storage; of a view, of its root. moved_nbytes: of its own bytes, those that
 * were read for it; none of what is mapped. Thread-safe.
 */
BERTH_API int berth_storage_get_stats(berth_checkpoint *checkpoint, const berth_storage *storage,
                                      berth_storage_stats *stats, berth_error *error);

/* What the file says of itself. Text lives as long as the checkpoint. */
typedef struct berth_info {
    const char *archive;       /* top folder, "" for a stream from before 1.6 */
    const char *container;     /* "zip" or "stream" */
    int64_t format_version;    /* 0: no such record */
    int64_t storage_alignment; /* 0: no such record */
    const char *byteorder;     /* "little" or "big" */
    bool byteorder_recorded;   /* else assumed, load.endianness */
    uint64_t nbytes;           /* of the file */
    uint64_t storages_nbytes;
    size_t n_records;
    size_t n_unknown_records; /* neither PyTorch's own nor a storage that is used */
    size_t n_storages;
    size_t n_tensors;
    size_t n_crc32; /* records with a CRC */
    bool calculated_offsets;
} berth_info;

/*
 * The storages of a checkpoint, one by one, in the order in which its values name them: the first
 * one after NULL, NULL after the last. Those that are views of another one, which only files from
 * before 1.6 have, are left out. Any thread may ask.
 */
BERTH_API const berth_storage *berth_storage_next(const berth_checkpoint *checkpoint,
                                                  const berth_storage *previous);

/* Reads the directory, where load.check=none left it unread. */
BERTH_API int berth_get_info(berth_checkpoint *checkpoint, berth_info *info, berth_error *error);

/* ---- verification ---- */

typedef struct berth_verdict {
    size_t n_records;
    size_t n_storages;
    size_t n_verified;   /* records whose CRC was computed and matches */
    size_t n_unverified; /* non-empty records without a CRC */
    size_t n_bad;        /* records with which something is wrong */
    uint64_t nbytes;     /* of all records */
} berth_verdict;

/*
 * Reads the whole file and checks everything: archive, directory against local
 * headers and descriptors, computed offsets, pickle, every tensor's bounds, every CRC.
 * Every byte is read once, by io.threads workers with buffers of at most io.memory_nbytes; what
 * open reads, data.pkl and the directory, once before.
 * 0, or the first thing found bad: what keeps the file from being opened at all, else the first
 * bad record in the file's order. *verdict (NULL: not asked) counts what was seen until then.
 */
BERTH_API int berth_verify(const char *path, const berth_params *call, berth_verdict *verdict,
                           berth_error *error);

/* One record as it was found. All pointers are valid during the call only. */
typedef struct berth_record_verdict {
    const char *name; /* without the top folder; "" for a storage of a stream from before 1.6 */
    uint64_t offset;  /* of its data */
    uint64_t nbytes;
    berth_crc_verdict crc32;
    const berth_error *bad; /* NULL: nothing is wrong with it; its message does not name the file */
} berth_record_verdict;

/* Told of each record in the file's order, on the thread that asked, when all bytes are read. */
typedef void (*berth_record_function)(void *context, const berth_record_verdict *record);

/*
 * Like berth_verify, but tells every record, the bad ones too: one that is bad does not keep
 * others from being looked at. Only one that is not where the others say is the last. One that the
 * disk cannot read (EIO, ENODATA, EILSEQ) is told as bad, too, with that system_errno, where
 * opening did not need it, and the file is no stream; a request that fails once and then does not
 * is an error.
 */
BERTH_API int berth_verify_records(const char *path, const berth_params *call,
                                   berth_record_function tell, void *context,
                                   berth_verdict *verdict, berth_error *error);

/* ---- records: the container level ---- */

/*
 * Opens the records of any archive of this kind (TorchScript and torch.package
 * too) without looking into the pickle. Reads the directory, checks headers as
 * load.check says: directory reads none of them where every header is where the layout puts it.
 */
BERTH_API int berth_archive_open(const char *path, const berth_params *call,
                                 berth_archive **archive, berth_error *error);
/* Like berth_archive_open. The descriptor is duplicated, not kept. */
BERTH_API int berth_archive_open_fd(int fd, const berth_params *call, berth_archive **archive,
                                    berth_error *error);
/* Like berth_archive_open. The bytes must live, unchanged, until berth_archive_close. */
BERTH_API int berth_archive_open_memory(const void *bytes, size_t nbytes, const berth_params *call,
                                        berth_archive **archive, berth_error *error);
/* Like berth_archive_open. *source is copied, its context must live until berth_archive_close. */
BERTH_API int berth_archive_open_source(const berth_source *source, const berth_params *call,
                                        berth_archive **archive, berth_error *error);
BERTH_API void berth_archive_close(berth_archive *archive);             /* NULL: nothing */
BERTH_API const char *berth_archive_name(const berth_archive *archive); /* top folder */
BERTH_API size_t berth_archive_count(const berth_archive *archive);
/* Record i in the directory's order. BERTH_E_NOT_FOUND: no such record. */
BERTH_API int berth_archive_at(const berth_archive *archive, size_t i, berth_record *record);
/* The record of a name without the top folder; BERTH_E_NOT_FOUND. */
BERTH_API int berth_archive_find(const berth_archive *archive, const char *name,
                                 berth_record *record, berth_error *error);
/* Bytes [offset, offset + nbytes) of a record, inflated where it is deflated; long ranges by
 * workers, as berth_tensor_read does. Thread-safe. */
BERTH_API int berth_archive_read(berth_archive *archive, const berth_record *record, void *buffer,
                                 size_t nbytes, uint64_t offset, berth_error *error);

/* ===================================================================== */
/*  Prefetch and rows                                                    */
/* ===================================================================== */

/* ---- prefetch: bytes come before they are needed ---- */

/*
 * Brings the bytes of a selection from the file into memory ahead of the one who uses them (the
 * consumer), in the file's order, on io.threads threads of its own. In passes: what lies ahead of
 * the consumer is never more than one pass, so that memory falls with load.prefetch_passes; 0
 * passes: as few as fit into io.memory_nbytes, or else into half of the memory that is free. What
 * the device reads ahead by itself (up to two of its windows) counts, but where a pass is shorter
 * than four of them; then it may come on top.
 *
 * How, load.prefetch says (off: as populate):
 * - populate: pages are read, and made present in the map: whoever touches them waits for nothing
 * - advise: the system is asked to read, in windows that the device follows; the bytes may still be
 *   on their way when berth_prefetch_advance returns
 * - read: through a small buffer, into the page cache only; so also where storages are not mapped
 *   (load.mmap=off and others), or where the system cannot populate. berth_prefetch_get_stats
 * tells.
 *
 * Bytes that are in memory already, or being brought by another prefetch of the same checkpoint,
 * are not asked for again. Nothing is ever dropped: what the consumer is done with goes when the
 * system needs the memory, as pages of any file do, and what was written to a copy-on-write map
 * stays. Storages that are memory of their own already, or read past the page cache (direct), are
 * left out, and those on devices; of a checkpoint from memory or a berth_source nothing is left:
 * that is no error, and everything returns at once.
 *
 * All functions may be called from any threads at once, but for berth_prefetch_free, which is the
 * last; it must come before berth_close.
 */
typedef struct berth_prefetch berth_prefetch;

/* Keep the pages in memory until berth_prefetch_free (mlock). Only with populate and a map; locks
 * do not add up: of two prefetches that lock the same pages, the first to be freed unlocks. */
#define BERTH_PREFETCH_LOCK 1u
/* The consumer goes through the bytes once, in order (MADV_SEQUENTIAL): pages behind it are the
 * first to go. */
#define BERTH_PREFETCH_SWEEP 2u

/*
 * Begins, and returns at once. `what` as everywhere, NULL: all storages. `flags`: 0 or those above.
 * Of the call only its config counts. BERTH_E_MEMORY: io.memory_nbytes has no room for a window
 * (the message names the tensor and the bytes missing), or the pages may not be locked
 * (RLIMIT_MEMLOCK). On failure *prefetch is NULL.
 */
BERTH_API int berth_prefetch_begin(berth_checkpoint *checkpoint, const berth_selection *what,
                                   uint32_t flags, const berth_params *call,
                                   berth_prefetch **prefetch, berth_error *error);
/*
 * The consumer is about to use this tensor, and done with all that lies before it in the file:
 * waits until its bytes are there, and lets one pass beyond it come. Tensors that the prefetch does
 * not bring are passed by. Who takes tensors out of the file's order gets them as well, but what
 * lies before the furthest of them no longer counts as ahead. BERTH_E_CANCELLED, or what went
 * wrong: then nothing more is brought, and the tensor can still be used, as without prefetch.
 */
BERTH_API int berth_prefetch_advance(berth_prefetch *prefetch, const berth_tensor *tensor,
                                     berth_error *error);
/*
 * Like berth_prefetch_advance, for elements [first, first + n) of the row-major order: for tensors
 * longer than a pass. Of tensors that are not contiguous, for all of them.
 */
BERTH_API int berth_prefetch_advance_part(berth_prefetch *prefetch, const berth_tensor *tensor,
                                          int64_t first, int64_t n, berth_error *error);
/* The consumer needs all that is left: it comes, as if that were one pass, and is waited for. */
BERTH_API int berth_prefetch_wait(berth_prefetch *prefetch, berth_error *error);
/* Nothing more is begun; who waits gets BERTH_E_CANCELLED. Does not wait. NULL: nothing. */
BERTH_API void berth_prefetch_cancel(berth_prefetch *prefetch);
/*
 * Cancels what is not done, waits for what is under way (a window at most), frees. An error that
 * nobody was told goes to the log. NULL: nothing.
 */
BERTH_API void berth_prefetch_free(berth_prefetch *prefetch);

/* What a prefetch has done so far. Bytes are those of whole pages. */
typedef struct berth_prefetch_stats {
    uint64_t n_passes; /* planned */
    uint64_t n_passes_begun;
    uint64_t n_passes_done;
    uint64_t pass_nbytes;       /* of one: the most that lies ahead of the consumer */
    uint64_t window_nbytes;     /* of one request */
    uint64_t asked_nbytes;      /* of the selection */
    uint64_t resident_nbytes;   /* were in memory before. 0 where the system tells that to none but
                                   the file's owner and writers (Linux before 6.5) */
    uint64_t shared_nbytes;     /* were just being brought by another prefetch */
    uint64_t brought_nbytes;    /* came by this one; with advise, were asked for */
    uint64_t peak_ahead_nbytes; /* most that was brought or being brought beyond the consumer */
    uint64_t n_requests;        /* advices and reads */
    unsigned n_threads;
    double wait_seconds; /* spent in berth_prefetch_advance and _wait, by all threads together */
    const char *method; /* "populate", "advise", "read", "populate, then read", "advise, then read",
                           "none". Static */
    const char *reason; /* why that one. Static */
} berth_prefetch_stats;

/* Copies them as they are now. */
BERTH_API int berth_prefetch_get_stats(berth_prefetch *prefetch, berth_prefetch_stats *stats,
                                       berth_error *error);

/* ---- rows ---- */

/*
 * A cache of rows, for tables larger than memory: embeddings. Rows of 2-dimensional tensors are
 * asked for by the batch and ahead of their use; those that are not in memory are read by threads
 * of the cache, neighbours together:
 *
 *     berth_rows_limits limits = {.cache_nbytes = 1 << 30};
 *     berth_rows_new(&limits, NULL, &rows, &error);
 *     berth_rows_add(rows, model, berth_find_tensor(model, "embedding.weight"), &table, &error);
 *     berth_rows_prefetch(rows, table, ids, n, &ticket, &error);
 *     ...                                                        // the batch before this one
 *     berth_rows_lookup(rows, ticket, pointers, &error);         // waits
 *     ...                                                        // pointers[i] is row ids[i]
 *     berth_rows_release(rows, ticket, NULL);
 *
 * A row that a live ticket was given for stays where it is until that ticket is released; of the
 * others, those that were asked for longest ago make room. A row can lie in `ways` lines of the
 * cache; where tickets hold all of these, it is read into the scratch, for its ticket alone.
 *
 * Rows are bytes in this machine's order, to be read, not written: many tickets may share them.
 * They are aligned to 64 bytes; where no table has rows as long, to their length. All lines are as
 * long as the longest row of all tables: tables of very different rows have better caches each.
 * Where a storage is in memory already (berth_tensor_data), its rows are copied from there; what is
 * written to it afterwards is not seen by rows that the cache has.
 *
 * All functions but berth_rows_free may be called from any threads at once, also with one ticket;
 * who releases it must know that nobody uses its rows any more.
 */
typedef struct berth_rows berth_rows;

/* A request for rows, until it is released. Never 0, and never the same twice in a cache. */
typedef uint64_t berth_ticket;

/*
 * Bytes of memory, all taken when the cache is made, and lines that a row can lie in. Beside them
 * is only what live tickets note: 20 bytes an id, and a kilobyte.
 */
typedef struct berth_rows_limits {
    uint64_t cache_nbytes;   /* lines, each with 20 bytes that are noted of it */
    uint64_t scratch_nbytes; /* rows that found no line, and, up to a half, what neighbours are read
                                through. 0: an eighth of cache_nbytes, besides it */
    unsigned ways;           /* 1 to 64; 0: 16 */
} berth_rows_limits;

/*
 * Makes an empty cache, the caller's to free. It has io.threads threads, which read, or, with
 * io.threads=0, 16, as they mostly wait; of what comes at once, no more than processors read. With
 * io.threads=1 it has none: who waits reads. BERTH_E_MEMORY: there is not as much memory, or
 * io.memory_nbytes is less than both limits; the message tells the bytes missing.
 */
BERTH_API int berth_rows_new(const berth_rows_limits *limits, const berth_params *call,
                             berth_rows **rows, berth_error *error);

/*
 * Ends all reading and frees the cache. Live tickets end with it, their pointers too. No other
 * thread may be in a function of it. NULL: nothing.
 */
BERTH_API void berth_rows_free(berth_rows *rows);

/*
 * Adds a table: *table is its number, 0 for the first. The tensor has two dimensions, is contiguous
 * and not of a sub-byte kind; the struct may be a part of one that was handed out. The checkpoint
 * must live as long as the cache. BERTH_E_MEMORY: the limits leave no room for `ways` of its rows,
 * or for one in the scratch; the message names the tensor and the bytes missing. A table whose rows
 * are longer than all before it empties the cache: BERTH_E_BUSY where tickets are live.
 */
BERTH_API int berth_rows_add(berth_rows *rows, berth_checkpoint *checkpoint,
                             const berth_tensor *tensor, size_t *table, berth_error *error);

/*
 * Asks for n rows of a table, in any order, also repeated, and does not wait: reading has begun, as
 * far as there are threads. *ticket is live until berth_rows_release; the ids are not needed any
 * more. On failure it is 0, nothing is held, and nothing was evicted:
 *   BERTH_E_ARGUMENT  an id is no row of the table, which the message names; there is no such table
 *   BERTH_E_BUSY      live tickets hold too many rows; the message tells the bytes missing
 *   BERTH_E_MEMORY    the rows would not even find room without any other ticket
 */
BERTH_API int berth_rows_prefetch(berth_rows *rows, size_t table, const int64_t *ids, size_t n,
                                  berth_ticket *ticket, berth_error *error);

/*
 * Waits until all rows of a ticket are there, and helps to read them. An error of reading names
 * record and byte. A row that two tickets ask for is read once, and fails for both; rows that were
 * not read are not kept: who asks again, reads again. BERTH_E_ARGUMENT: no live ticket.
 */
BERTH_API int berth_rows_wait(berth_rows *rows, berth_ticket ticket, berth_error *error);

/* Waits like berth_rows_wait; then pointers[i] is row ids[i], until the ticket is released. */
BERTH_API int berth_rows_lookup(berth_rows *rows, berth_ticket ticket, const void **pointers,
                                berth_error *error);

/*
 * Ends a ticket: its rows may be evicted. What is still to be read for it is read first.
 * BERTH_E_ARGUMENT: no live ticket; nothing is done.
 */
BERTH_API int berth_rows_release(berth_rows *rows, berth_ticket ticket, berth_error *error);

/* What a cache has done so far. */
typedef struct berth_rows_stats {
    uint64_t n_requests;   /* that got a ticket */
    uint64_t n_refused;    /* that found no room */
    uint64_t n_tickets;    /* live now */
    uint64_t n_ids;        /* asked for */
    uint64_t n_unique;     /* distinct ones of each request: n_hits + n_misses */
    uint64_t n_hits;       /* found in a line */
    uint64_t n_awaited;    /* of these: while another ticket was reading them */
    uint64_t n_misses;     /* to be read */
    uint64_t n_conflicts;  /* of these: into the scratch */
    uint64_t n_evictions;  /* rows that made room */
    uint64_t n_reads;      /* requests of reading */
    uint64_t n_merged;     /* of these: for more than one row */
    uint64_t asked_nbytes; /* of rows to be read */
    uint64_t read_nbytes;  /* the same with what lies between neighbours */
    uint64_t n_lines;      /* the cache has */
    uint64_t line_nbytes;
} berth_rows_stats;

/* Copies them as they are now. */
BERTH_API int berth_rows_get_stats(berth_rows *rows, berth_rows_stats *stats, berth_error *error);

/* ===================================================================== */
/*  Devices                                                              */
/* ===================================================================== */

/*
 * Memory that is not the host's: a GPU's, through CUDA's driver, which is looked for when it is
 * first asked for; a program needs nothing of CUDA to be built, or to run without. "cuda:0" is the
 * driver's first device, in its primary context, the one that PyTorch and CUDA's runtime use too; a
 * calling thread keeps the context it has, and whoever captures a graph meanwhile, on any thread,
 * goes on with it (since CUDA 10.1). "simulated:0" and "simulated:1" are there everywhere: memory
 * that the host cannot touch and copies that come late, for tests. Device addresses are numbers:
 * what CUdeviceptr and a tensor's data_ptr() are.
 *
 * BERTH_E_DEVICE: no driver, no such device, or it failed: the message names it and ends in the
 * driver's own name for what happened. BERTH_E_UNAVAILABLE: a library that was built without its
 * part for CUDA. Devices do not survive a fork: a child process gets errors.
 *
 * A device's context can die: somebody resets it (cudaDeviceReset), or a kernel goes wrong. What is
 * under way fails; what opens the device next (all that gets its name, and fetches) does so anew.
 * Whatever lay there before is gone: BERTH_E_DEVICE is what a save of it gets, and who asks for a
 * tensor that a checkpoint has there; berth_close does not touch it. Where only a new process
 * helps, the message says that it must be started again.
 *
 * Between device and file bytes go through a few staging buffers (device.staging_nbytes,
 * device.staging_buffers), which the first operation pins and the next ones use again. An operation
 * counts those it uses for io.memory_nbytes, which must leave 2 MiB for one. Where memory cannot be
 * pinned there are fewer; without one it is BERTH_E_MEMORY, with the bytes.
 *
 * GPUDirect Storage is not used. In files of save.storage_alignment=4096 requests of it fit: each
 * storage begins at a multiple of 4096, and up to the next one behind its end lies no other.
 */

/* ---- saving from devices ---- */

/*
 * Like berth_storage_new, for bytes on a device: nbytes bytes from `address` on, which stay the
 * caller's. `location`: the device, "cuda:0"; "cuda" is the first one, and is saved as "cuda:0".
 * `ready`: an event (CUevent, cudaEvent_t) of that device, recorded behind the kernels that write
 * the bytes, and in no capture of a graph: whoever copies them lets the device wait for it. NULL:
 * they are there. The event must live as long as the bytes must. NULL, and berth_tree_error tells,
 * also if the device cannot be opened or the first or last byte is not its memory.
 *
 *     berth_storage *storage =
 *         berth_device_storage_new(tree, BERTH_FLOAT32, address, nbytes, "cuda:0", event);
 *     berth_dict_set(state, "weight",
 *                    berth_make_tensor(tree, &(berth_tensor){.dtype = BERTH_FLOAT32, .rank = 1,
 *                                                             .shape = &n, .storage = storage}));
 *
 * Storages on several devices and on the host may mix in one file, which is as if all had been on
 * the host, but for the locations that it records. Saves read the bytes by asynchronous copies on
 * streams of their own, and look again whether they are the device's. For a job they must stay as
 * they are until it is staged: from then on they may be overwritten or freed, while the copy is
 * still on its way to the file.
 */
BERTH_API berth_storage *berth_device_storage_new(berth_tree *tree, berth_dtype dtype,
                                                  uintptr_t address, uint64_t nbytes,
                                                  const char *location, void *ready);

/* ---- memory of devices ---- */

/*
 * Memory of a device, for programs that have none from elsewhere. nbytes bytes from *address on,
 * aligned for anything (256 bytes at least), what is in them is not told; 0 bytes are at address 0.
 * They are the caller's until berth_device_memory_free, which takes their first address (0:
 * nothing); when the context died they are gone, and not to be freed. BERTH_E_MEMORY: the device
 * has no room. Any thread may call all of these.
 */
BERTH_API int berth_device_memory_new(const char *device, size_t nbytes, uintptr_t *address,
                                      berth_error *error);
BERTH_API void berth_device_memory_free(const char *device, uintptr_t address);

/*
 * Copies bytes into a device's memory, or from there; of whoever made it, at any address in it.
 * When this comes back they are there. It waits for no kernel and for no other copy. Slower than
 * saves and loads: one copy, through ordinary memory. BERTH_E_ARGUMENT: the first or last byte is
 * not that device's memory.
 */
BERTH_API int berth_device_memory_write(const char *device, uintptr_t address, const void *bytes,
                                        size_t nbytes, berth_error *error);
BERTH_API int berth_device_memory_read(const char *device, uintptr_t address, void *bytes,
                                       size_t nbytes, berth_error *error);

/* ---- loading to devices ---- */

/*
 * Where storages go. By default, all go to the host, wherever they were when they were saved; with
 *
 *     berth_placement_rule as_they_were = {.place = NULL};
 *     berth_choose_places(model, &as_they_were, 1, &error);
 *     berth_load(model, NULL, NULL, &error);
 *     berth_tensor_device_address(model, weight, &address, &error);
 *
 * each goes to the device that it came from (PyTorch's default; {.location = "cuda*", .place =
 * "cuda:0"} is its map_location={'cuda:1': 'cuda:0', ...}). Devices are opened at once; nothing is
 * read. berth_load then brings them: through pinned staging buffers, whose copies by the device
 * overlap with reading, with CRCs compared (load.check=data) and bytes swapped on the way; past the
 * page cache where that is best, or load.method and berth_choose_methods say so ("map" is as
 * "read"; with load.check=data set load.mmap=off, too, or berth_open reads all of a file that it
 * could map, to sum it, before anything has a place). When it returns, all copies have been made:
 * any stream may use the bytes. Storages on the host, on one device and on another may mix in one
 * load. Failed fetches leave nothing on devices, but may have written to memory that the caller
 * gave.
 *
 * A place counts for storages that nobody has asked for yet: what is memory, of the host or of a
 * device, stays there. Views of another storage, which only files from before 1.6 have, go with it.
 * Where a storage goes, berth_storage_get_stats tells.
 */

/* A rule fits a storage that all of it fits; zeros fit any. */
typedef struct berth_placement_rule {
    const char *pattern;  /* glob: one of the names of the tensors that view it. NULL: any */
    const char *location; /* glob over where it was, "cuda*". NULL: any */
    uint64_t least_nbytes;
    uint64_t most_nbytes; /* 0: no bound */
    const char *place;    /* "cpu", "cuda:0", …; NULL: where it was */
} berth_placement_rule;

/*
 * Says for each storage where it goes: by the first rule that fits it; those that none fits go to
 * the host. Errors are those of devices, or BERTH_E_ARGUMENT for what names none; then no place has
 * changed. Thread-safe.
 */
BERTH_API int berth_choose_places(berth_checkpoint *checkpoint, const berth_placement_rule *rules,
                                  size_t n_rules, berth_error *error);

/* Where one storage goes. */
typedef struct berth_placement {
    const char *place; /* "cpu" when asked; read before the next storage is asked for */
    uintptr_t address; /* memory of the caller's on that device, which stays so and must be there
                          until berth_close; 0: berth_load makes some, berth_close frees it */
    uint64_t nbytes;   /* of that memory: at least the storage's */
    void *ready;       /* an event of that device, behind what else uses the memory; NULL: nothing
                          does. Without an address of the caller's nobody looks at it */
} berth_placement;

/* Fills *placement: 0 or an errno value. */
typedef int (*berth_placement_function)(void *context, const berth_storage *storage,
                                        berth_placement *placement);

/*
 * The same by a function, asked once a storage, on the caller's thread. BERTH_E_ARGUMENT also: the
 * memory given is too small, or not that device's; BERTH_E_CALLBACK: the function failed. Memory
 * that the function made is the caller's to free, after failures too.
 *
 * `ready`: an event (CUevent, cudaEvent_t), recorded behind the last kernel or copy that reads or
 * writes the memory, and in no capture of a graph. Its bytes are copied behind it: the device waits
 * and the host does not, but for free staging buffers; berth_load comes back when they have been
 * copied. Many storages may have the same event, or each its own. The event is the caller's and
 * must live, and not be recorded again, until whatever brings the storage (berth_load,
 * berth_tensor_device_address) has come back with 0, or berth_close: after a failure the next one
 * waits for it again.
 */
BERTH_API int berth_choose_places_by(berth_checkpoint *checkpoint, berth_placement_function choose,
                                     void *context, berth_error *error);

/*
 * The address of a tensor's first element (its strides apply) on the device that is its place, in
 * the device's byte order; 0 if it is empty. Brings its storage if nobody has. Memory that is ours
 * begins at multiples of 512 bytes, of storages up to 64 KiB at multiples of 64, and lives until
 * berth_close. What is written to it, berth_tensor_read and saves of the checkpoint's values get,
 * these a piece after the other through ordinary memory: berth_device_storage_new over the address
 * saves faster. BERTH_E_ARGUMENT: its place is the host. Thread-safe.
 */
BERTH_API int berth_tensor_device_address(berth_checkpoint *checkpoint, const berth_tensor *tensor,
                                          uintptr_t *address, berth_error *error);
/* Like berth_tensor_device_address, for a whole storage. */
BERTH_API int berth_storage_device_address(berth_checkpoint *checkpoint,
                                           const berth_storage *storage, uintptr_t *address,
                                           berth_error *error);

#ifdef __cplusplus
}
#endif

#endif /* BERTH_H */
