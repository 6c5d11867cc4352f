/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * berth.h - save and load PyTorch checkpoints from C.
 *
 * This is the whole public interface. It is also the manual.
 *
 *     berth_error error;
 *     berth_tree *tree = berth_tree_new(NULL);
 *     berth_value *state = berth_make_dict(tree, BERTH_KIND_ORDERED_DICT);
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
 *     const float *w = berth_expect(model, "weight", BERTH_FLOAT32, 2, shape, &error);
 *     if (!w)
 *         die(error.message);
 *     ...                        // w lives as long as model
 *     berth_close(model);
 *
 * How to read a comment. It says what the function does. Then come, where they matter and in this
 * order, the labels
 *   Parameters:  units, ranges, what NULL means
 *   Shapes:      ranks and sizes of tensors and arrays
 *   Lifetime:    who owns what, and how long it must live
 *   Returns:     what it returns
 *   Errors:      which status means what
 *   Threads:     which threads may call it; without this label: one thread at a time per handle
 *   Source:      where a rule comes from, if it is not Berth's own
 *
 * Rules that hold everywhere:
 *   - A function that can fail returns `int`: 0, or a negative `berth_status`. Or it returns a
 *     pointer: NULL on failure. It takes a `berth_error *`, which may be NULL. If it is not NULL,
 *     the function clears it first, and fills it on failure.
 *   - Berth never executes anything from a file. It never aborts, exits or prints, and has no
 *     hidden error state.
 *   - Different handles may be used from different threads at the same time. One handle may be used
 *     from several threads only where its comment says so.
 *   - Sizes are in bytes and end in `_nbytes`. Positions in a file are in bytes from its start and
 *     end in `offset`. Shapes, strides and storage offsets are in elements, as in PyTorch.
 *   - Text is UTF-8. Text that Berth returns ends with NUL. It may contain further NULs where its
 *     length is returned too.
 *   - A member of a struct may be left 0 unless its comment says otherwise. `reserved` members must
 *     be 0: a later version may give them a meaning, and an older library refuses what it does not
 *     know (BERTH_E_ARGUMENT) instead of ignoring it.
 *
 * Processes, signals, descriptors:
 *   - A forked child may use all of Berth, whatever the threads of its parent were doing. It may
 *     also read through its parent's trees, checkpoints and archives. Jobs, prefetches, row caches
 *     and devices stay with the parent: in the child they return BERTH_E_ARGUMENT (devices:
 *     BERTH_E_DEVICE). The child may free all of them; that changes nothing for the parent. A child
 *     that is forked inside a callback may only exec or exit.
 *   - If a thread is cancelled (pthread_cancel) inside a call, the call runs to its end first.
 *   - Saves block SIGXFSZ while they write. Berth touches no other signal.
 *   - Berth never uses the descriptors 0 to 2, even if they are closed.
 *   - The shared library stays loaded after dlclose.
 *
 * What libberth.so.0 promises: releases with the same major and minor version can replace each
 * other without a new build (0.2.0, 0.2.1). Before 1.0 a new minor version may change anything;
 * CHANGELOG says what. The symbols carry the minor version (BERTH_0.2): a program that was linked
 * against another one does not start, and the dynamic linker says why. From 1.0 on, an older
 * program runs with a newer library. Functions keep their meaning. Structs keep their size: new
 * members take the place of reserved ones. Enums get new values: give each switch a default.
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
#define BERTH_MUST_CHECK __attribute__((warn_unused_result))
#else
#define BERTH_API
#define BERTH_MUST_CHECK
#endif

/* ===================================================================== */
/*  Version                                                              */
/* ===================================================================== */

#define BERTH_VERSION_MAJOR 0
#define BERTH_VERSION_MINOR 2
#define BERTH_VERSION_PATCH 0
#define BERTH_VERSION_STRING "0.2.0"

/*
 * The version of the library that is linked, for example "0.2.0". The macros above are the version
 * of this header.
 * Lifetime: static.
 * Threads: any.
 */
BERTH_API const char *berth_version(void);

/* ===================================================================== */
/*  Status and error                                                     */
/* ===================================================================== */

/* The result of an operation. */
typedef enum berth_status {
    BERTH_OK = 0,
    BERTH_E_ARGUMENT = -1,        /* invalid argument */
    BERTH_E_OPTION = -2,          /* invalid option name or value */
    BERTH_E_UNAVAILABLE = -3,     /* not available in this build */
    BERTH_E_MEMORY = -4,          /* out of memory */
    BERTH_E_SYSTEM = -5,          /* a system call failed: see system_errno */
    BERTH_E_NO_SPACE = -6,        /* no space left, or a size limit was reached */
    BERTH_E_CALLBACK = -7,        /* the caller's function failed */
    BERTH_E_CANCELLED = -8,       /* cancelled */
    BERTH_E_NOT_DURABLE = -9,     /* the file is in place, but may be lost in a power cut */
    BERTH_E_NOT_FOUND = -10,      /* not found */
    BERTH_E_AMBIGUOUS = -11,      /* the name matches several values */
    BERTH_E_NOT_CHECKPOINT = -12, /* not a checkpoint */
    BERTH_E_ARCHIVE = -13,        /* the archive is broken or ambiguous */
    BERTH_E_PICKLE = -14,         /* the pickle is malformed */
    BERTH_E_FORBIDDEN = -15,      /* the pickle names a function that is not allowed */
    BERTH_E_TENSOR = -16,         /* a tensor does not fit its storage */
    BERTH_E_OFFSETS = -17,        /* computed offsets differ from the file's */
    BERTH_E_CHECKSUM = -18,       /* a checksum does not match */
    BERTH_E_TRUNCATED = -19,      /* the file ends too early */
    BERTH_E_UNSUPPORTED = -20,    /* valid, but not supported */
    BERTH_E_DEVICE = -21,         /* a device failed, or does not exist */
    BERTH_E_BUSY = -22,           /* live tickets still use the row cache */
    BERTH_E_TIMEOUT = -23,        /* not done in the given time */
    BERTH_E_PEER = -24,           /* another writer of the joint save failed */
    BERTH_E_REPLACE = -25         /* the file cannot be replaced, only written in place */
} berth_status;

/* The value of `berth_error.offset` if the error concerns no byte of a file. */
#define BERTH_NO_OFFSET UINT64_MAX

/*
 * What went wrong. `message` is one line without a newline. It names the file, the record and the
 * byte where they are known:
 *   "model.pt: data/3 at byte 1048576: No space left on device"
 * If several things fail in one operation, it describes the first. This struct never changes.
 * Lifetime: the caller's, usually on its stack.
 */
typedef struct berth_error {
    berth_status code; /* BERTH_OK: nothing went wrong */
    int system_errno;  /* errno of a failed system call, else 0 */
    uint64_t offset;   /* byte in the file, or BERTH_NO_OFFSET */
    char record[128];  /* record name, cut if it is longer; "": none */
    char message[640];
} berth_error;

/* How berth_show_text escapes. */
typedef enum berth_text_form {
    BERTH_TEXT_PLAIN = 0, /* \n, \x1b, \u202e, \U000e0001; a byte that is no UTF-8: \xff */
    BERTH_TEXT_JSON = 1   /* for the inside of a string of JSON: \u001b, surrogates; \ufffd */
} berth_text_form;

/*
 * Makes a text from a file safe for a terminal: what moves the cursor, ends a line, turns, joins or
 * hides text, is not seen, or is no UTF-8 is shown as an escape. All else stays, backslashes too.
 * Messages of errors have been made so.
 * Parameters: out, out_nbytes: the caller's; what does not fit is left out, but no part of a
 * character or of an escape is written. NULL, 0: only counts.
 * Returns: the size of the whole in bytes, without NUL. It is `nbytes` only if nothing is escaped.
 * Threads: any.
 */
BERTH_API size_t berth_show_text(const char *text, size_t nbytes, berth_text_form form, char *out,
                                 size_t out_nbytes);

/*
 * The name of a status, for example "BERTH_E_MEMORY".
 * Lifetime: static.
 * Returns: a text; "BERTH_E_UNKNOWN" for a number that is no status.
 * Threads: any.
 */
BERTH_API const char *berth_status_name(int status);

/* ===================================================================== */
/*  Allocator and log hooks                                              */
/* ===================================================================== */

/*
 * Where Berth gets its memory. It does not use this for mapped files, nor for memory of 2 MiB and
 * more that storages are read into: that is mapped in large pages, where the system has them.
 *
 * `reallocate` works as realloc does: NULL allocates, nbytes 0 frees. If there is no memory it
 * returns NULL and the old block stays valid. This struct never changes.
 * Threads: Berth calls it from several threads at once.
 */
typedef struct berth_allocator {
    void *(*reallocate)(void *context, void *pointer, size_t nbytes);
    void *context;
} berth_allocator;

/*
 * Receives messages that are no errors: an option fell back, offsets were taken from the directory.
 * `message` is one line without a newline. Without a log function nothing is written anywhere.
 * Threads: Berth calls it from several threads at once, also while it holds locks. So it must not
 * call Berth.
 */
typedef void (*berth_log_function)(void *context, const char *message);

/*
 * Sets the allocator of the process.
 * Parameters: allocator: copied; NULL: the C library's.
 * Threads: call it before anything else of Berth, from one thread.
 */
BERTH_API void berth_set_allocator(const berth_allocator *allocator);

/*
 * Sets the log function of the process.
 * Parameters: function: NULL: no log. context: passed to it.
 * Threads: call it before anything else of Berth, from one thread.
 */
BERTH_API void berth_set_log(berth_log_function function, void *context);

/* ===================================================================== */
/*  Dtypes                                                               */
/* ===================================================================== */

/*
 * The type of an element. QUINT4X2 holds two elements in an item, QUINT2X4 four; all others hold
 * one.
 * Source: torch.dtype of PyTorch 2.13.
 */
typedef enum berth_dtype {
    BERTH_DTYPE_NONE = 0, /* a storage without a type: it counts bytes */
    BERTH_FLOAT32 = 1,
    BERTH_FLOAT64 = 2,
    BERTH_FLOAT16 = 3,
    BERTH_BFLOAT16 = 4,
    BERTH_INT8 = 5,
    BERTH_INT16 = 6,
    BERTH_INT32 = 7,
    BERTH_INT64 = 8,
    BERTH_UINT8 = 9,
    BERTH_BOOL = 10,
    BERTH_COMPLEX64 = 11,
    BERTH_COMPLEX128 = 12,
    BERTH_QINT8 = 13,
    BERTH_QUINT8 = 14,
    BERTH_QINT32 = 15,
    BERTH_QUINT4X2 = 16,
    BERTH_QUINT2X4 = 17,
    BERTH_COMPLEX32 = 18,
    BERTH_UINT16 = 19,
    BERTH_UINT32 = 20,
    BERTH_UINT64 = 21,
    BERTH_FLOAT8_E5M2 = 22,
    BERTH_FLOAT8_E4M3FN = 23,
    BERTH_FLOAT8_E5M2FNUZ = 24,
    BERTH_FLOAT8_E4M3FNUZ = 25,
    BERTH_FLOAT8_E8M0FNU = 26,
    BERTH_FLOAT4_E2M1FN_X2 = 27,
    BERTH_BITS8 = 28,
    BERTH_BITS16 = 29,
    BERTH_BITS1X8 = 30,
    BERTH_BITS2X4 = 31,
    BERTH_BITS4X2 = 32,
    /* PyTorch loads these, but cannot save them. */
    BERTH_INT1 = 33,
    BERTH_INT2 = 34,
    BERTH_INT3 = 35,
    BERTH_INT4 = 36,
    BERTH_INT5 = 37,
    BERTH_INT6 = 38,
    BERTH_INT7 = 39,
    BERTH_UINT1 = 40,
    BERTH_UINT2 = 41,
    BERTH_UINT3 = 42,
    BERTH_UINT4 = 43,
    BERTH_UINT5 = 44,
    BERTH_UINT6 = 45,
    BERTH_UINT7 = 46,
    BERTH_BCOMPLEX32 = 47, /* two bfloat16: PyTorch 2.14 and later */
    BERTH_DTYPE_COUNT = 48 /* of this header; a newer library may know more */
} berth_dtype;

/*
 * PyTorch's name of a dtype without "torch.", for example "float32".
 * Lifetime: static.
 * Returns: the name; "untyped" for BERTH_DTYPE_NONE and for unknown numbers.
 * Threads: any.
 */
BERTH_API const char *berth_dtype_name(berth_dtype dtype);

/*
 * The size of one item in bytes.
 * Returns: the size; 1 for BERTH_DTYPE_NONE.
 * Threads: any.
 */
BERTH_API size_t berth_dtype_nbytes(berth_dtype dtype);

/* ===================================================================== */
/*  Storages and tensors                                                 */
/* ===================================================================== */

typedef struct berth_tree berth_tree;             /* owns values and storages */
typedef struct berth_value berth_value;           /* one node of a tree */
typedef struct berth_storage berth_storage;       /* bytes that tensors view */
typedef struct berth_checkpoint berth_checkpoint; /* an opened file, with its values */
typedef struct berth_archive berth_archive;       /* an opened file, its records only */

/* The largest rank of a tensor. Source: PyTorch. */
#define BERTH_MAX_RANK 64

/* Flags of a tensor. */
#define BERTH_REQUIRES_GRAD 1u
#define BERTH_CONJ 2u /* the elements are the complex conjugates of the stored ones */
#define BERTH_NEG 4u  /* the elements are the negatives of the stored ones */
#define BERTH_META 8u /* on the meta device: a shape and a dtype, no storage */
/* A flag of a sparse COO tensor, beside BERTH_REQUIRES_GRAD: see berth_value_flags. */
#define BERTH_COALESCED 16u

/* How a quantized tensor maps integers to numbers. Source: torch.qscheme. */
typedef enum berth_qscheme {
    BERTH_NOT_QUANTIZED = 0,
    BERTH_PER_TENSOR_AFFINE = 1,
    BERTH_PER_TENSOR_SYMMETRIC = 2,
    BERTH_PER_CHANNEL_AFFINE = 3,
    BERTH_PER_CHANNEL_SYMMETRIC = 4,
    BERTH_PER_CHANNEL_AFFINE_FLOAT_QPARAMS = 5
} berth_qscheme;

/*
 * A strided view of a storage. The caller fills one to make a tensor, and leaves members at 0 that
 * it does not need. Or Berth returns one. This struct never changes.
 * Shapes: `shape` and `stride` have `rank` items, each 0 or more. Rank 0 is one element.
 * Lifetime: a struct that Berth returns, and all its pointers, live as long as the tree or
 * checkpoint. berth_make_tensor copies the caller's struct, shape and stride.
 */
typedef struct berth_tensor {
    berth_dtype dtype;
    int32_t rank;           /* 0 to BERTH_MAX_RANK */
    const int64_t *shape;   /* in elements */
    const int64_t *stride;  /* in elements; NULL when made: contiguous */
    int64_t storage_offset; /* in elements from the storage's start */
    berth_storage *storage; /* NULL: a meta tensor; or, when made, a storage of its own over `data`,
                               on "cpu" */
    const void *data;       /* when made without a storage: the elements. They must not change until
                               the tree is freed. BERTH_ELSEWHERE: another process has them. NULL
                               when returned: use berth_tensor_data */
    uint32_t flags;         /* BERTH_REQUIRES_GRAD, ... */
    berth_qscheme qscheme;  /* BERTH_NOT_QUANTIZED for most */
    double scale;           /* per tensor */
    int64_t zero_point;     /* per tensor */
    const berth_value *scales;      /* per channel: a tensor of shape[axis] items (in older files a
                                       list of numbers) */
    const berth_value *zero_points; /* per channel: likewise */
    int64_t axis;                   /* per channel */
} berth_tensor;

/*
 * The number of elements: the product of the shape.
 * Returns: the number; 0 for NULL. For a struct that the caller filled, the product may wrap
 * around.
 * Threads: any.
 */
static inline int64_t berth_tensor_numel(const berth_tensor *tensor)
{
    uint64_t numel = tensor ? 1 : 0;
    for (int32_t i = 0; tensor && i < tensor->rank; i++)
        numel *= (uint64_t)tensor->shape[i];
    return (int64_t)numel;
}

/*
 * The size of all elements in bytes: their number times the size of an item, rounded up for dtypes
 * with several elements in an item.
 * Returns: the size; 0 for NULL.
 * Threads: any.
 */
BERTH_API uint64_t berth_tensor_nbytes(const berth_tensor *tensor);

/*
 * Whether the elements lie in row-major order without gaps. A tensor without elements is
 * contiguous.
 * Returns: false for NULL.
 * Threads: any.
 */
static inline bool berth_tensor_is_contiguous(const berth_tensor *tensor)
{
    bool contiguous = tensor != NULL;
    uint64_t stride = 1; /* of this dimension, if there are no gaps */
    for (int32_t i = tensor ? tensor->rank : 0; i-- > 0; stride *= (uint64_t)tensor->shape[i]) {
        if (tensor->shape[i] == 0)
            return true;
        if (tensor->shape[i] != 1 && (uint64_t)tensor->stride[i] != stride)
            contiguous = false;
    }
    return contiguous;
}

/* In place of the data of a storage, or of a tensor: another process has them (berth_joint_begin).
 */
#define BERTH_ELSEWHERE ((const void *)~(uintptr_t)0)

/*
 * Makes a storage from memory of the host.
 * Parameters: dtype: the type of the elements, which decides the storage class in the file;
 * BERTH_DTYPE_NONE: untyped. data: the bytes, or BERTH_ELSEWHERE. nbytes: a multiple of the item's
 * size. location: where the file says that the storage was: "cpu", "cuda:0", ...; NULL: "cpu".
 * Lifetime: the bytes stay the caller's. They must live, unchanged, as long as the tree.
 * Returns: the storage; NULL on failure, and berth_tree_error tells why.
 * Errors: BERTH_E_ARGUMENT: nbytes is no multiple of the item's size, or the location is "meta",
 * which has no bytes. BERTH_E_MEMORY.
 */
BERTH_API berth_storage *berth_storage_new(berth_tree *tree, berth_dtype dtype, const void *data,
                                           uint64_t nbytes, const char *location);

/*
 * Facts of a storage.
 * Lifetime: the struct and its texts live as long as the tree or checkpoint.
 */
typedef struct berth_storage_info {
    const char *key;      /* of its record "data/<key>"; "": the caller made the storage */
    const char *location; /* where it was when it was saved: "cpu", "cuda:0", ... */
    berth_dtype dtype;    /* of its elements; BERTH_DTYPE_NONE: untyped */
    uint64_t nbytes;
} berth_storage_info;

/*
 * The facts of a storage.
 * Returns: NULL for NULL.
 * Threads: any.
 */
BERTH_API const berth_storage_info *berth_storage_get_info(const berth_storage *storage);

/* ===================================================================== */
/*  Values                                                               */
/* ===================================================================== */

/*
 * The kind of a value. A checkpoint holds a tree of Python values. Berth keeps their identity: a
 * value that is used in two places is written once and read back as one. Tensors that share a
 * storage in PyTorch share a `berth_storage` here.
 */
typedef enum berth_kind {
    BERTH_KIND_NONE = 0,
    BERTH_KIND_BOOL = 1,
    BERTH_KIND_INT = 2, /* of any size */
    BERTH_KIND_FLOAT = 3,
    BERTH_KIND_COMPLEX = 4,
    BERTH_KIND_STR = 5,
    BERTH_KIND_BYTES = 6,
    BERTH_KIND_BYTEARRAY = 7,
    BERTH_KIND_LIST = 8,
    BERTH_KIND_TUPLE = 9,
    BERTH_KIND_DICT = 10,
    BERTH_KIND_ORDERED_DICT = 11, /* collections.OrderedDict */
    BERTH_KIND_COUNTER = 12,      /* collections.Counter */
    BERTH_KIND_SET = 13,
    BERTH_KIND_SIZE = 14,      /* torch.Size */
    BERTH_KIND_DEVICE = 15,    /* torch.device */
    BERTH_KIND_DTYPE = 16,     /* torch.dtype */
    BERTH_KIND_QSCHEME = 17,   /* torch.per_tensor_affine, ... */
    BERTH_KIND_LAYOUT = 18,    /* torch.layout */
    BERTH_KIND_STORAGE = 19,   /* a storage without a tensor around it */
    BERTH_KIND_TENSOR = 20,    /* strided, quantized or meta */
    BERTH_KIND_SPARSE = 21,    /* COO, CSR, CSC, BSR, BSC */
    BERTH_KIND_NESTED = 22,    /* nested tensor */
    BERTH_KIND_PARAMETER = 23, /* torch.nn.Parameter around a tensor */
    BERTH_KIND_SUBCLASS = 24,  /* a tensor with Python attributes, or of a class of its own */
    BERTH_KIND_GLOBAL = 25,    /* the name of a class or function, which is never called */
    BERTH_KIND_CALL = 26       /* inert: a call of an unknown class or function, never executed */
} berth_kind;

/* The memory layout of a tensor. Source: torch.layout. */
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
 * Makes an empty tree. A tree owns all values and storages that are made in it. It copies the text
 * that it is given, but not the bytes of tensors.
 *
 * A tree remembers its first failure. After that, every berth_make function of it returns NULL.
 * They also accept NULL as an argument. A save of a value of that tree then fails with the
 * remembered error. So code that builds a tree need not check every line.
 *
 * Lifetime: the caller frees it with berth_tree_free.
 * Returns: the tree; NULL: BERTH_E_MEMORY.
 */
BERTH_API berth_tree *berth_tree_new(berth_error *error);

/*
 * Frees a tree with all its values and storages.
 * Parameters: tree: NULL: does nothing.
 * Lifetime: jobs, plans and copies (berth_value_copy) of the tree's values must be gone.
 * Threads: no other thread may use the tree any more.
 */
BERTH_API void berth_tree_free(berth_tree *tree);

/*
 * The first failure of a tree.
 * Parameters: error: receives a copy; may be NULL.
 * Returns: 0: there was none; else its status.
 * Threads: any, as long as no thread changes the tree.
 */
BERTH_API int berth_tree_error(const berth_tree *tree, berth_error *error);

/* ---- making values ---- */

/*
 * Each berth_make function makes one value.
 * Lifetime: the tree owns it. Text, numbers and shapes are copied.
 * Returns: the value; NULL on failure: see berth_tree_new.
 * Errors: BERTH_E_MEMORY. BERTH_E_ARGUMENT: an argument is out of range, or of another tree. The
 * tree remembers them.
 * Threads: one at a time for one tree; different trees do not disturb each other.
 */

/* None. */
BERTH_API berth_value *berth_make_none(berth_tree *tree);

/* True or False. */
BERTH_API berth_value *berth_make_bool(berth_tree *tree, bool value);

/* An int. */
BERTH_API berth_value *berth_make_int(berth_tree *tree, int64_t value);

/* A float. */
BERTH_API berth_value *berth_make_float(berth_tree *tree, double value);

/* A complex. */
BERTH_API berth_value *berth_make_complex(berth_tree *tree, double real, double imaginary);

/*
 * A str.
 * Parameters: text: nbytes bytes of UTF-8, which may include NUL. It may hold surrogates, as
 * Python's surrogatepass encodes them.
 * Errors: BERTH_E_ARGUMENT: it is not UTF-8; the message names the byte.
 */
BERTH_API berth_value *berth_make_str(berth_tree *tree, const char *text, size_t nbytes);

/*
 * A bytes, a bytearray, or an int of any size.
 * Parameters: kind: BERTH_KIND_BYTES, BERTH_KIND_BYTEARRAY; or BERTH_KIND_INT: bytes are in two's
 * complement, little-endian, 1 to 255 of them.
 */
BERTH_API berth_value *berth_make_bytes(berth_tree *tree, berth_kind kind, const void *bytes,
                                        size_t nbytes);

/* An empty list: berth_list_append fills it. */
BERTH_API berth_value *berth_make_list(berth_tree *tree);

/*
 * A tuple. It cannot grow.
 * Parameters: items: n_items values of the same tree, in order; NULL if n_items is 0.
 */
BERTH_API berth_value *berth_make_tuple(berth_tree *tree, berth_value *const *items,
                                        size_t n_items);

/*
 * An empty dict. berth_dict_set fills it.
 * Parameters: kind: BERTH_KIND_DICT; BERTH_KIND_ORDERED_DICT, which a state_dict is; or
 * BERTH_KIND_COUNTER.
 */
BERTH_API berth_value *berth_make_dict(berth_tree *tree, berth_kind kind);

/* An empty set: berth_set_add fills it. */
BERTH_API berth_value *berth_make_set(berth_tree *tree);

/*
 * A torch.Size.
 * Shapes: shape: rank items, 0 to BERTH_MAX_RANK of them; NULL if rank is 0.
 */
BERTH_API berth_value *berth_make_size(berth_tree *tree, const int64_t *shape, int32_t rank);

/*
 * torch.device(type, index).
 * Parameters: type: "cpu", "cuda", ... index: at most 127; less than 0: torch.device(type).
 * Source: torch.device; its index is an int8_t.
 */
BERTH_API berth_value *berth_make_device(berth_tree *tree, const char *type, int64_t index);

/*
 * A constant of torch, such as torch.float32.
 * Parameters: kind: BERTH_KIND_DTYPE, _QSCHEME or _LAYOUT. number: a value of berth_dtype,
 * berth_qscheme or berth_layout_kind.
 */
BERTH_API berth_value *berth_make_constant(berth_tree *tree, berth_kind kind, int number);

/*
 * A storage without a tensor around it.
 * Parameters: storage: of the same tree.
 */
BERTH_API berth_value *berth_make_storage(berth_tree *tree, berth_storage *storage);

/*
 * A tensor.
 * Parameters: tensor: see berth_tensor for what may stay 0. Its storage and its values, if it has
 * some, are of the same tree.
 * Lifetime: *tensor, its shape and its stride are copied. The elements are not.
 * Errors: BERTH_E_TENSOR: it does not fit its storage, or its quantization is incomplete.
 */
BERTH_API berth_value *berth_make_tensor(berth_tree *tree, const berth_tensor *tensor);

/*
 * A torch.nn.Parameter.
 * Parameters: tensor: a tensor or a sparse one, of the same tree.
 */
BERTH_API berth_value *berth_make_parameter(berth_tree *tree, berth_value *tensor,
                                            bool requires_grad);

/*
 * A sparse tensor.
 * Parameters: parts: tensors. COO: {indices, values}. CSR and BSR: {crow_indices, col_indices,
 * values}. CSC and BSC: {ccol_indices, row_indices, values}. is_coalesced: for COO: the indices are
 * sorted, and none occurs twice. The indices are not checked: see berth_tensor_check_indices.
 * Shapes: shape: rank items. The shapes of the parts must agree with it, as in PyTorch.
 * Errors: BERTH_E_TENSOR: the parts do not agree with each other or with the shape.
 */
BERTH_API berth_value *berth_make_sparse(berth_tree *tree, berth_layout_kind layout,
                                         const int64_t *shape, int32_t rank,
                                         berth_value *const *parts, bool is_coalesced);

/*
 * A nested tensor (torch.nested, strided layout).
 * Parameters: parts: four tensors: buffer, sizes, strides, storage offsets.
 * Errors: BERTH_E_TENSOR: the parts do not agree.
 * Source: PyTorch 2.15 loads it with weights_only=False alone. A save logs that once.
 */
BERTH_API berth_value *berth_make_nested(berth_tree *tree, berth_value *const parts[4]);

/*
 * A tensor with Python attributes.
 * Parameters: tensor: a tensor, a sparse one, or a Parameter. state: a dict of the attributes, or
 * what PyTorch pickles in its place.
 * Errors: a save fails with BERTH_E_UNSUPPORTED if an attribute has a name of the tensor's own
 * (`data`, `grad`, `shape`, `__class__`, ...), because PyTorch would then set something else. It
 * also fails if such a value is inside a Parameter.
 * Source: it is written as _rebuild_parameter_with_state (Parameters) or _rebuild_from_type_v2.
 */
BERTH_API berth_value *berth_make_subclass(berth_tree *tree, berth_value *tensor,
                                           berth_value *state);

/* ---- filling containers ---- */

/*
 * Each of these functions puts a value of the same tree into a container.
 * Returns: 0, or a negative status, which the tree remembers too (berth_tree_error). The message
 * names the key or the index.
 * Errors: BERTH_E_ARGUMENT: the first argument is not a container of that kind, or the value is
 * NULL or of another tree. BERTH_E_MEMORY.
 * Threads: one at a time for one tree.
 */

/* Appends an item to a LIST: list.append(item). */
BERTH_API int berth_list_append(berth_value *list, berth_value *item);

/*
 * Adds an item to a SET: set.add(item). An item that is equal to one of the set is not added again.
 * Errors: BERTH_E_UNSUPPORTED: the item is not hashable.
 */
BERTH_API int berth_set_add(berth_value *set, berth_value *item);

/*
 * dict[key] = value, for a key that is a text. A key that exists keeps its position.
 * Parameters: dict: a DICT, ORDERED_DICT or COUNTER. key: UTF-8, ends with NUL; copied.
 */
BERTH_API int berth_dict_set(berth_value *dict, const char *key, berth_value *value);

/*
 * dict[key] = value, for any key.
 * Parameters: dict: as for berth_dict_set. key: of the same tree.
 * Errors: BERTH_E_UNSUPPORTED: the key is not hashable.
 */
BERTH_API int berth_dict_set_value(berth_value *dict, berth_value *key, berth_value *value);

/*
 * Sets the attributes of an OrderedDict: `_metadata` of a state_dict. For tensors there is
 * berth_make_subclass.
 * Parameters: state: a dict.
 */
BERTH_API int berth_value_set_state(berth_value *value, berth_value *state);

/* ---- copying ---- */

/* A flag of berth_value_copy: cut each storage to the bytes that the tensors use. */
#define BERTH_COPY_COMPACT 1u

/*
 * Makes a value in `tree` that equals `value`. So a checkpoint is edited: open it, copy what stays,
 * set what changes, save.
 *
 *     berth_value *root = berth_make_dict(tree, BERTH_KIND_DICT);
 *     const berth_value *old = berth_find(checkpoint, "model", &error);
 *     berth_dict_set(root, "model", berth_value_copy(tree, old, 0));
 *     berth_dict_set(root, "epoch", berth_make_int(tree, 7));
 *     berth_save("model.pt", root, NULL, &error);
 *
 * What was one value, or shared a storage, in `value` does so in the copy. Sharing is kept within
 * one call only: copy values that share storages in one call.
 * Parameters: value: of any tree or checkpoint, of `tree` too. It stays as it is. flags: 0; or
 * BERTH_COPY_COMPACT: each new storage has only the range from the first to the last byte that a
 * tensor of the copy uses, so that the save of a view writes no more. A storage that is itself a
 * value (BERTH_KIND_STORAGE) stays whole.
 * Lifetime: the values are new. The bytes are not copied: the tree or checkpoint of `value` must
 * live until the copy is used no more.
 * Returns: the copy; NULL on failure, and berth_tree_error tells why. Time and memory are in
 * proportion to the whole tree of `value`.
 * Threads: no other thread may change either tree meanwhile.
 */
BERTH_API berth_value *berth_value_copy(berth_tree *tree, const berth_value *value, uint32_t flags);

/* ---- reading values ---- */

/*
 * The functions below read a value of a tree or a checkpoint. `value` may be NULL, which reads like
 * a NONE.
 * Lifetime: what they return lives as long as the tree or checkpoint.
 * Threads: any, as long as no thread changes the tree.
 */

/* The kind of a value; BERTH_KIND_NONE for NULL. */
BERTH_API berth_kind berth_value_kind(const berth_value *value);

/*
 * The name of a kind, for example "OrderedDict".
 * Lifetime: static.
 * Returns: a text; "unknown" for a number that is no kind.
 */
BERTH_API const char *berth_kind_name(berth_kind kind);

/*
 * The next functions return true and set *result if the value is of their kind. Else they return
 * false and set it to 0 (false).
 */

/* A BOOL: True or False. */
BERTH_API bool berth_as_bool(const berth_value *value, bool *result);

/* An INT that fits; berth_as_bytes reads one that does not. */
BERTH_API bool berth_as_int(const berth_value *value, int64_t *result);

/* A FLOAT. An INT is none: 1 and 1.0 are different in Python, too. */
BERTH_API bool berth_as_float(const berth_value *value, double *result);

/*
 * A COMPLEX.
 * Parameters: real, imaginary: may be NULL.
 */
BERTH_API bool berth_as_complex(const berth_value *value, double *real, double *imaginary);

/*
 * A DTYPE, QSCHEME or LAYOUT, as `kind` says. A SPARSE has a LAYOUT too. A STORAGE has a DTYPE,
 * that of the class which names it, if it is typed; an empty storage may be named by several
 * classes.
 * Parameters: number: becomes a berth_dtype, berth_qscheme or berth_layout_kind.
 */
BERTH_API bool berth_as_constant(const berth_value *value, berth_kind kind, int *number);

/*
 * The next functions return a pointer; NULL if the value is of another kind. `nbytes`
 * may be NULL.
 */

/*
 * The text of a STR, "module name" of a GLOBAL, "cuda:1" of a DEVICE.
 * Parameters: nbytes: receives the length without the NUL at the end. A STR may hold more NULs.
 */
BERTH_API const char *berth_as_text(const berth_value *value, size_t *nbytes);

/*
 * A BYTES or BYTEARRAY; or an INT beyond 64 bits, in two's complement, little-endian.
 * Returns: NULL for an INT that fits: berth_as_int reads it.
 */
BERTH_API const uint8_t *berth_as_bytes(const berth_value *value, size_t *nbytes);

/*
 * A SIZE, or the shape of a SPARSE.
 * Parameters: rank: receives the number of items.
 * Shapes: the result has *rank items.
 */
BERTH_API const int64_t *berth_as_size(const berth_value *value, int32_t *rank);

/* A STORAGE. */
BERTH_API berth_storage *berth_as_storage(const berth_value *value);

/*
 * A TENSOR, also the one inside a PARAMETER or SUBCLASS.
 * Returns: its struct; the elements come from berth_tensor_data and berth_tensor_read.
 */
BERTH_API const berth_tensor *berth_as_tensor(const berth_value *value);

/*
 * The number of items of a LIST, TUPLE, SET, SIZE or dict; of parts of a SPARSE or NESTED; of
 * arguments of a CALL. 0 for other kinds.
 */
BERTH_API size_t berth_value_count(const berth_value *value);

/*
 * Item i of any kind that berth_value_count counts, except dicts (berth_dict_at). Items of a SET
 * are in the order of the file.
 * Returns: the item; NULL: there is no item i.
 */
BERTH_API berth_value *berth_value_at(const berth_value *value, size_t i);

/*
 * Key and item i of a dict, in the order of insertion.
 * Parameters: key, item: may be NULL.
 * Returns: false: there is no item i; then both become NULL.
 */
BERTH_API bool berth_dict_at(const berth_value *dict, size_t i, berth_value **key,
                             berth_value **item);

/*
 * The item of a dict under a key that is a text.
 * Parameters: key: UTF-8, ends with NUL.
 * Returns: the item; NULL: the dict has no such key, or the value is no dict.
 */
BERTH_API berth_value *berth_dict_get(const berth_value *dict, const char *key);

/* What a value has beside its items. */
typedef enum berth_part {
    BERTH_PART_INNER = 0,      /* PARAMETER, SUBCLASS: the tensor inside. CALL: what is called */
    BERTH_PART_STATE = 1,      /* attributes: ORDERED_DICT, TENSOR, PARAMETER, SUBCLASS, CALL */
    BERTH_PART_LIST_ITEMS = 2, /* CALL: a LIST of what Python would append to the object */
    BERTH_PART_DICT_ITEMS = 3, /* CALL: a DICT of what Python would set in it by key */
    BERTH_PART_TYPE = 4        /* SUBCLASS of an inert file: its class, a GLOBAL or a CALL */
} berth_part;

/*
 * A part of a value. In names it is "x.__dict__", "x.list_items.0", "x.dict_items.key". The TYPE
 * has no name.
 * Returns: the part; NULL if there is none.
 */
BERTH_API berth_value *berth_value_part(const berth_value *value, berth_part part);

/*
 * The flags of a value.
 * Returns: BERTH_REQUIRES_GRAD: of a tensor or PARAMETER. BERTH_COALESCED: of a SPARSE. Else 0.
 */
BERTH_API uint32_t berth_value_flags(const berth_value *value);

/* ---- walking ---- */

/*
 * Where a walk stands.
 * Lifetime: valid during the call that gets it.
 */
typedef struct berth_walk berth_walk;
struct berth_walk {
    const char *(*path)(const berth_walk *walk); /* see berth_walk_path */
};

/*
 * The path of the value that the walk stands at, as berth_find takes it: "['model'][0].__dict__".
 * Lifetime: the text is valid until the function of the walker returns.
 * Returns: the path; "" for the root; "..." if it is longer than 16 MiB.
 */
static inline const char *berth_walk_path(const berth_walk *walk)
{
    return walk->path(walk);
}

/*
 * A function of a walker.
 * Returns: 0: go on; another number: end the walk with this result.
 */
typedef int (*berth_walk_function)(void *context, const berth_walk *walk, const berth_value *value);

/* What `enter` returns to pass over all that is inside the value. */
#define BERTH_WALK_SKIP 0x7fffffff

/* Flags of a walker. */
#define BERTH_WALK_ITEMS 1u /* only items of containers: no attributes, no parts of tensors */

/* What a walk calls. Each function may be NULL. */
typedef struct berth_walker {
    uint32_t flags;            /* 0 or BERTH_WALK_ITEMS */
    berth_walk_function enter; /* at a value, the first time; what is inside follows */
    berth_walk_function leave; /* after all that is inside; not after BERTH_WALK_SKIP */
    berth_walk_function alias; /* at a value that was entered before; it is not entered again */
    void *context;             /* for the functions */
    uint64_t reserved[2];      /* 0 */
} berth_walker;

/*
 * Walks all values under `value`, depth first and in order: items of containers (keys of dicts are
 * not walked), the parts of sparse, nested and quantized tensors, then what berth_value_part gives,
 * but the TYPE.
 * Values that have no identity (None, numbers) are entered wherever they occur.
 *
 * Nothing recurses: values may be nested as deep as a file can hold them. Time is in proportion to
 * the values, and to the lengths of the paths that the functions request.
 * Parameters: value: where the walk begins; it is the first value to be entered. walker: is read at
 * the start.
 * Lifetime: the values stay their tree's. The functions must not change the tree.
 * Returns: 0; or what a function returned to end the walk.
 * Errors: BERTH_E_ARGUMENT: the value or the walker is NULL. BERTH_E_MEMORY.
 * Threads: several walks may run at once, as long as no thread changes the tree.
 */
BERTH_API int berth_value_walk(const berth_value *value, const berth_walker *walker,
                               berth_error *error);

/* ===================================================================== */
/*  Config                                                               */
/* ===================================================================== */

/*
 * Every option has a name "section.name" (the exceptions are "debug" and "trace"), a type, bounds
 * and a default: berth_config_describe and `berth config` show them. The value in force is the
 * first of
 *   1. BERTH_FORCE_<SECTION>_<NAME> in the environment
 *   2. the patch of this thread (berth_config_patch)
 *   3. the value that the program set (berth_config_set)
 *   4. BERTH_<SECTION>_<NAME> in the environment
 *   5. a line "section.name=value" of the file that BERTH_CONFIG in the environment names
 *   6. the default.
 * An alias works like the name itself at every level: "debug" is also "serialization_debug", so
 * BERTH_SERIALIZATION_DEBUG sets it. If the environment has both, the name wins over the alias.
 * "debug" also follows TORCH_SERIALIZATION_DEBUG, of which only "1" counts, as in PyTorch.
 *
 * How values are written: sizes as 4096, 64K or 64KiB (both 65,536), 4GB (4,000,000,000); bools as
 * off or on, 0 or 1, false or true, no or yes; flags with commas between them.
 *
 * Berth reads the environment once, at first use. A variable with an invalid value, or with a name
 * that is near to an option's and is none, makes every operation fail, and the error names it.
 * Other variables that begin with a section, and unknown lines of the file, are logged and ignored:
 * they may be of another version. berth_config_describe works whatever the environment holds.
 *
 * Each operation copies the configuration when it starts. Later changes do not affect it. A forced
 * value also overrides a configuration that is passed to an operation. With debug on, loads check
 * at least what load.check=headers checks, and saves check every byte before it leaves: data that
 * change while they are saved fail the save (BERTH_E_CHECKSUM, where CRCs are computed).
 *
 * Errors: BERTH_E_OPTION: unknown name or invalid value.
 * Threads: any may call these functions, if nothing else is said.
 * Source: the levels are those of torch.utils._config_module.
 */
typedef struct berth_config berth_config; /* one complete configuration */

/*
 * Sets the program's value of one option, for all threads. If a patch of this thread has the
 * option, the value becomes the patch's: it is in force at once on this thread, and goes with the
 * patch.
 * Parameters: name: of the option, or an alias. text: "off", "4096", "1MiB", "direct".
 */
BERTH_API int berth_config_set(const char *name, const char *text, berth_error *error);

/*
 * The same, and says where the program has the value from.
 * Parameters: source: for berth_config_describe and messages, such as "--set". The library copies
 * it, and keeps some thousand different ones; berth_config_describe says "program" for the others.
 * NULL: "program".
 */
BERTH_API int berth_config_set_from(const char *name, const char *text, const char *source,
                                    berth_error *error);

/*
 * Removes the program's value of one option. If a patch of this thread has the option, the patch
 * gets the value of the environment or the default.
 * Parameters: name: NULL: of all options.
 */
BERTH_API int berth_config_reset(const char *name, berth_error *error);

/*
 * Patches the configuration of this thread. All assignments take effect, or none does. Patches
 * nest.
 * Parameters: assignments: "name=value", separated by white space.
 * Lifetime: a patch lasts until berth_config_unpatch on the same thread.
 */
BERTH_API int berth_config_patch(const char *assignments, berth_error *error);

/*
 * Undoes the last patch of this thread.
 * Errors: BERTH_E_ARGUMENT: there is no patch.
 */
BERTH_API int berth_config_unpatch(berth_error *error);

/*
 * What an option is, and where its value comes from.
 * Lifetime: the texts are static; `value` is part of the struct.
 */
typedef struct berth_option {
    const char *name;      /* "save.durability" */
    const char *type;      /* "bool", "enum", "int", "bytes", "flags", "text" */
    const char *unit;      /* "bytes", "threads", ... or "" */
    const char *bounds;    /* "none | file | full", "1 to 32768, a power of two" */
    const char *initial;   /* the default, as text */
    const char *help;      /* one paragraph */
    const char *aliases;   /* other names, separated by spaces; or "" */
    const char *source;    /* "default", "environment BERTH_...", "file ...", "patch", "force ...",
                              "program" or what berth_config_set_from was told */
    char value[64];        /* in force on this thread, as text; a long one is cut */
    const char *successor; /* of a deprecated name: the option that it stands for; else "" */
    int64_t number;   /* the value: of a bool 0 or 1, of an enum its index in the bounds, of flags
                         a sum of 1, 2, 4 and so on, else in the option's unit */
    uint32_t classes; /* berth_option_class: what the option can change */
    bool is_default;  /* the value equals the default, whoever set it */
    const char *text; /* of type "text": the whole value; it stays. Else NULL */
    uint64_t reserved[3];
} berth_option;

/* What an option can change. */
typedef enum berth_option_class {
    BERTH_CLASS_BYTES = 1,      /* the bytes of a file that is saved */
    BERTH_CLASS_ACCEPTANCE = 2, /* which files a load accepts, and what it makes of them */
    BERTH_CLASS_SPEED = 4,      /* only time, memory, and when the bytes are durable */
    BERTH_CLASS_ALL = 7
} berth_option_class;

/*
 * The name of option i, for a loop over all options.
 * Lifetime: static.
 * Returns: "save.compute_crc32", ...; NULL: there is no option i.
 * Threads: any.
 */
BERTH_API const char *berth_config_name(size_t i);

/*
 * Describes an option, with the value that is in force on this thread, or with that of a
 * configuration; then the source is "configuration".
 * Parameters: config: NULL: what is in force. name: of the option, or an alias. option: receives
 * the description.
 */
BERTH_API int berth_config_describe(const berth_config *config, const char *name,
                                    berth_option *option, berth_error *error);

/*
 * Makes a configuration: a copy of what is in force on this thread.
 * Lifetime: the caller frees it with berth_config_free.
 * Threads: any may read one configuration; nobody may change it meanwhile.
 */
BERTH_API berth_config *berth_config_new(berth_error *error);

/*
 * Frees a configuration.
 * Parameters: config: NULL: does nothing.
 * Threads: no operation may use it any more.
 */
BERTH_API void berth_config_free(berth_config *config);

/*
 * Changes a configuration. All assignments take effect, or none does.
 * Parameters: assignments: as in berth_config_patch.
 * Threads: no other thread may use `config` meanwhile.
 */
BERTH_API int berth_config_apply(berth_config *config, const char *assignments, berth_error *error);

/* What berth_config_print writes: "name=value" on each line, which berth_config_parse reads; or C.
 */
typedef enum berth_config_form {
    BERTH_CONFIG_PORTABLE = 0, /* every option */
    BERTH_CONFIG_CHANGED = 1,  /* only what differs from the defaults */
    BERTH_CONFIG_CODE = 2,     /* C calls that make the same changes */
    BERTH_CONFIG_VARIABLES = 3 /* BERTH_SECTION_NAME=value, for a child that inherits the rest */
} berth_config_form;

/*
 * Writes a configuration as text.
 * Parameters: config: NULL: what is in force on this thread. text, text_nbytes: the caller's
 * buffer; the text is cut to fit, and ends with NUL.
 * Returns: the size of the whole text in bytes, without the NUL, as snprintf does; or a negative
 * status.
 */
BERTH_API int64_t berth_config_print(const berth_config *config, berth_config_form form, char *text,
                                     size_t text_nbytes, berth_error *error);

/*
 * Sets the values of portable text, each as berth_config_set_from does. All take effect, or none
 * does.
 * Parameters: text: lines "name=value", as berth_config_print writes them. `#` starts a comment.
 * Unknown options are logged and skipped: the text may be of another version. source: of the text,
 * such as "file x.conf", as in berth_config_set_from; NULL: "program".
 * Errors: BERTH_E_OPTION: the message names the option and the line.
 */
BERTH_API int berth_config_parse(const char *text, const char *source, berth_error *error);

/*
 * A hash of the values of all options of some classes. Equal values have equal hashes on every
 * machine, as long as the same options are there.
 * Parameters: config: NULL: what is in force on this thread. classes: BERTH_CLASS_ALL; or some of
 * them, such as BERTH_CLASS_BYTES: files with equal hashes were saved in the same form.
 * Returns: the hash; 0 if a variable of the environment is invalid.
 */
BERTH_API uint64_t berth_config_hash(const berth_config *config, uint32_t classes);

/*
 * A function that is called after the value of an option has changed, on the thread that changed
 * it.
 * Parameters: context: of the watch. option: describes the option with the new value; source is
 * "patch" if only this thread has it. It is the callee's until it returns.
 * Threads: several may call it at once. It may call all functions of this part.
 */
typedef void (*berth_config_function)(void *context, const berth_option *option);

/*
 * Watches an option: every set, reset, parse, patch and unpatch that changes the value in force on
 * its thread calls the function. At most 64 watches live at a time.
 * Parameters: name: NULL: all options. function: NULL: ends the watches of this name and context;
 * with no name, all watches of this context.
 * Lifetime: a change that another thread began before the end of a watch may still call it.
 */
BERTH_API int berth_config_watch(const char *name, berth_config_function function, void *context,
                                 berth_error *error);

/* An option of a framework: what a row of berth_config_register says. */
typedef struct berth_option_row {
    const char *name;      /* 1 to 32 of a-z, 0-9, _: "interval" */
    const char *type;      /* "bool", "enum", "int", "bytes", "flags" */
    const char *choices;   /* of enums and flags: "never | daily". Of flags the first is the text of
                              no flags, and excludes the second */
    int64_t minimum;       /* of ints and bytes: 0 or more */
    int64_t maximum;       /* of ints and bytes */
    const char *initial;   /* the default, as text */
    const char *unit;      /* of ints: "steps"; NULL: none */
    const char *aliases;   /* other names, separated by spaces; NULL: none */
    const char *help;      /* one paragraph; NULL: none */
    const char *successor; /* the name is deprecated, and stands for this option; the first use is
                              logged, and all but name, aliases and help is the successor's */
    uint32_t classes;      /* berth_option_class: in which hashes it counts */
    uint64_t reserved[4];
} berth_option_row;

/*
 * Registers a framework's options. From then on they are options as the library's own are, in the
 * section's name: "trainer.interval" has BERTH_TRAINER_INTERVAL and BERTH_FORCE_TRAINER_INTERVAL in
 * the environment. All are registered, or none. They stay until the process ends. A section that
 * has options of the same names already is left as it is.
 * Parameters: section: 1 to 20 of a-z, 0-9, _; not "force", "config", "debug" or "trace". rows, n:
 * copied. At most 128 options can be registered in one process.
 * Errors: BERTH_E_ARGUMENT: a name is taken or malformed, bounds are impossible, there is no room.
 * BERTH_E_OPTION: a default is not within its bounds. BERTH_E_MEMORY.
 * Threads: any.
 */
BERTH_API int berth_config_register(const char *section, const berth_option_row *rows, size_t n,
                                    berth_error *error);

/* The state of a BERTH_WITH_CONFIG; for the macro only. */
typedef struct berth_config_scope {
    bool runs;
    bool is_patched;
} berth_config_scope;

/*
 * Begins and ends the patch of a BERTH_WITH_CONFIG; for the macro only.
 * Parameters: assignments: as in berth_config_patch.
 */
BERTH_API berth_config_scope berth_config_open_scope(const char *assignments);
BERTH_API void berth_config_close_scope(berth_config_scope *scope);

/*
 * A patch for one block, which ends with the block, however it is left: at its end, by break, goto
 * or return. (break leaves the block, not a loop around it.)
 *   BERTH_WITH_CONFIG("save.durability=file") {
 *       status = berth_save(path, value, NULL, &error);
 *   }
 * If the patch is refused, the block runs, and every operation in it fails with that error.
 */
#define BERTH_JOIN_(a, b) a##b
#define BERTH_JOIN(a, b) BERTH_JOIN_(a, b)
#define BERTH_WITH_CONFIG(assignments)                                                             \
    for (__attribute__((cleanup(berth_config_close_scope))) berth_config_scope BERTH_JOIN(         \
             berth_scope_, __LINE__) = berth_config_open_scope(assignments);                       \
         BERTH_JOIN(berth_scope_, __LINE__).runs; BERTH_JOIN(berth_scope_, __LINE__).runs = false)

/*
 * PyTorch's older setters. Each sets one option: save.compute_crc32, load.mmap_flags,
 * load.endianness.
 * Source: torch.serialization.
 */
static inline int berth_set_crc32_options(bool compute_crc32, berth_error *error)
{
    return berth_config_set("save.compute_crc32", compute_crc32 ? "on" : "off", error);
}

static inline int berth_set_default_mmap_options(const char *flags, berth_error *error)
{
    return berth_config_set("load.mmap_flags", flags, error);
}

static inline int berth_set_default_load_endianness(const char *endianness, berth_error *error)
{
    return berth_config_set("load.endianness", endianness, error);
}

/* ===================================================================== */
/*  Parameters, progress and statistics of one operation                 */
/* ===================================================================== */

/*
 * Reports from time to time how many bytes of how many are done.
 * Parameters: done_nbytes, total_nbytes: of the tensors' bytes.
 * Returns: 0 to go on. Anything else cancels: the operation returns BERTH_E_CANCELLED, and a path
 * that it saves to keeps its old file.
 * Threads: it is called from the thread that called the operation, or from the job's own thread.
 */
typedef int (*berth_progress_function)(void *context, uint64_t done_nbytes, uint64_t total_nbytes);

/*
 * What an operation did. Times are in seconds. `limited_by` names the slowest stage: speeding up
 * another one will not help.
 * Lifetime: texts are static.
 */
typedef struct berth_stats {
    double plan_seconds;     /* saves: pickling and computing the layout; loads: parsing */
    double copy_seconds;     /* jobs with a snapshot: copying the tensors */
    double transfer_seconds; /* reading or writing */
    double sync_seconds;     /* making the file durable */
    double total_seconds;
    double device_seconds;  /* summed over all workers: waiting for copies from or to devices */
    double render_seconds;  /* summed over all workers: checksums, byte swaps, assembling blocks */
    double disk_seconds;    /* summed over all workers: reading or writing */
    double crc32_seconds;   /* part of render_seconds: checksums; saves measure a sample */
    const char *limited_by; /* "device", "processor", "disk"; NULL: nothing was transferred */
    uint64_t device_nbytes; /* part of requested_nbytes: on devices */
    uint64_t requested_nbytes; /* what the caller wanted transferred */
    uint64_t moved_nbytes;     /* what was read or written */
    uint64_t n_requests;       /* reads or writes */
    uint64_t n_records;
    uint64_t n_storages;
    uint64_t memory_nbytes;  /* saves: buffers of all workers, at most io.memory_nbytes; loads:
                                host memory for what was read, and staging buffers */
    bool calculated_offsets; /* loads: the layout found the storages, not the directory */
    bool repacked;           /* loads: as in berth_info */
    const char *method;      /* "buffered", "direct", "direct, then buffered" (a direct write was
                                refused), "map", "read", "direct, then read", "memory",
                                "mixed" (storages differ), ... */
    const char *reason;      /* why this method */
    uint64_t n_left_out;     /* saves with BERTH_TENSORS_ONLY: values that were left out */
    const char *placed;     /* saves to paths: "renamed"; "in place" (save.replace); NULL: others */
    const char *durability; /* saved files that succeeded: what they reached, "none", "file" or
                               "full": less than save.durability if the file system cannot sync */
    const char *pages;      /* new memory of 2 MiB or more, by io.large_pages: "large", "small",
                               "large and small"; NULL: there was none */
    const char *pages_reason; /* why; NULL: there was none */
    uint64_t reserved[3];
} berth_stats;

/* What is known of a record's CRC. */
typedef enum berth_crc_verdict {
    BERTH_CRC_UNCHECKED = 0, /* not compared yet */
    BERTH_CRC_GOOD = 1,      /* loads: the bytes match it; saves: computed */
    BERTH_CRC_ABSENT = 2,    /* none is recorded, or the record is empty */
    BERTH_CRC_BAD = 3        /* the bytes do not match it */
} berth_crc_verdict;

/*
 * What happened to one storage.
 * Lifetime: texts are static.
 */
typedef struct berth_storage_stats {
    const char *method; /* saves: "direct", "buffered", "direct, then buffered": written from the
                           tensor's memory; "direct, copied", "buffered, copied": through a
                           buffer; "direct, from device", "buffered, from device": through a
                           staging buffer; "none". Loads: "map", "read", "direct",
                           "direct, then read", "memory"; "none": not loaded */
    const char *reason; /* why this method and no better one */
    const char *device; /* loads: where it goes or is: "cpu", "cuda:0", ... */
    uint64_t nbytes;
    uint64_t moved_nbytes; /* read or written */
    berth_crc_verdict crc32;
    uint64_t reserved[3];
} berth_storage_stats;

/*
 * A function of the caller that exchanges bytes among all writers of one joint save: each writer
 * sends some to each, itself too. MPI_Alltoallv does that.
 * Parameters: context: berth_params.exchange_context. send: send_nbytes[0] bytes for writer 0, then
 * those for writer 1, and so on. receive: room for receive_nbytes[0] bytes of writer 0, and so on.
 * What one writer sends and what the other one expects is always equal. send and receive do not
 * overlap.
 * Shapes: send_nbytes, receive_nbytes: one size for each writer of the save; 0 is a size.
 * Lifetime: everything is Berth's, until the function returns.
 * Returns: 0, when all is received and `send` is no longer read; or an errno value. If it fails in
 * one writer, it must fail in all, by a timeout if need be: Berth does not call it again.
 * Threads: it is called on the thread that called berth_joint_write, and all writers call it
 * equally often.
 */
typedef int (*berth_exchange_fn)(void *context, const void *send, const uint64_t *send_nbytes,
                                 void *receive, const uint64_t *receive_nbytes);

/*
 * How to run one operation. NULL or zeros: the configuration in force, no progress, no statistics.
 * Lifetime: everything that it points to is the caller's, and must live until the operation
 * returns (jobs: see berth_job).
 */
typedef struct berth_params {
    const berth_config *config; /* NULL: what is in force on this thread */
    berth_progress_function progress;
    void *progress_context;
    berth_stats *stats;       /* filled on success and on failure */
    const char *archive_name; /* saves: the folder inside the archive, at most 510 bytes. NULL: from
                                 the path's name, as PyTorch does; without a path "archive" */
    berth_storage_stats *storage_stats; /* saves: filled for the first n_storage_stats storages in
                                           the file's order; stats->n_storages is how many there
                                           are */
    size_t n_storage_stats;
    berth_exchange_fn exchange; /* berth_joint_write: see there; all others do not look at it */
    void *exchange_context;     /* of exchange */
    uint64_t reserved[4];       /* 0 */
} berth_params;

/* ===================================================================== */
/*  Saving                                                               */
/* ===================================================================== */

/*
 * Saves a value to a path, as torch.save(value, path) does, atomically: `path` holds the old file
 * or the whole new one, whatever happens. The tensors' bytes must not change until this returns.
 *
 * Path: symbolic links are followed. A save refuses what could not be opened for writing (a
 * read-only file, a folder), and what the rename would refuse: in a sticky or append-only folder,
 * under a mount, a device. A path such as /dev/fd/3 that leads to a file without a name
 * (memfd_create, O_TMPFILE, removed) is written in place; a failure leaves there what was
 * written. Never save values to the file that they are mapped from.
 *
 * In place: where a file system has no rename, a new file is written at its path, from its
 * beginning to its end; a failure removes it. save.replace=in_place overwrites an old file so, and
 * writes to devices, pipes and mount points; then a failure loses the old content. stats->placed
 * tells.
 *
 * Rights: the new file has owner, group, mode, ACL, security label and user.* attributes of the
 * file that it replaces (but no set-id bits, and no checksums of the old bytes), before the first
 * byte is written. So nobody can read or write it who could not read or write the old file. What
 * this process may not give to it (another owner, a group it is not in) is passed on by an ACL, or
 * is left out, and the log reports that. Where the old owner could lose access, the save is
 * refused (EPERM). A new file has what the umask and an ACL of its folder leave, of that what
 * save.readers says.
 *
 * Temporary: until the end, the bytes are in a file beside the path, ".berth-<16 hex
 * digits>-<0 to 15>.tmp". A failure leaves none. If a save was killed, the next save of the same
 * path removes its temporary, if that save certainly is dead: same host, same container, no such
 * process. berth_clean_temporaries removes others.
 * Returns: 0: the file is as durable as save.durability says.
 * If the file system cannot sync, it is less: see stats->durability.
 * Errors: BERTH_E_NOT_DURABLE: the new file is in place, but may be lost in a power cut.
 * BERTH_E_REPLACE: only save.replace=in_place could write it. After any other error than the first
 * the path keeps its old file, but for save.replace=in_place.
 * Threads: any; several saves may run at once, also of one value.
 */
BERTH_API BERTH_MUST_CHECK int berth_save(const char *path, const berth_value *value,
                                          const berth_params *params, berth_error *error);

/* ---- targets: where else a save can go ---- */

/*
 * A function of the caller that receives a checkpoint.
 *
 * `write` gets bytes for a position in the file. It returns 0, or an errno value, which fails the
 * save with BERTH_E_CALLBACK. Positions do not overlap, and all of the file is written. Durability
 * is up to the caller.
 * Threads: `write` is called from several at once. With `in_order` from one at a time, and offsets
 * follow each other.
 */
typedef struct berth_sink {
    int (*write)(void *context, const void *buffer, size_t nbytes, uint64_t offset);
    void *context;
    bool in_order;
    uint64_t reserved[4]; /* 0 */
} berth_sink;

typedef enum berth_target_kind {
    BERTH_TARGET_PATH = 1,
    BERTH_TARGET_FD = 2,
    BERTH_TARGET_MEMORY = 3,
    BERTH_TARGET_SINK = 4
} berth_target_kind;

/* Where a save goes. Made by berth_to_path, berth_to_fd, berth_to_memory or berth_to_sink. */
typedef struct berth_target {
    berth_target_kind kind;
    int fd;
    const char *path;
    void **bytes;
    size_t *nbytes;
    const berth_sink *sink;
    uint64_t reserved[4]; /* 0 */
} berth_target;

/*
 * A path, with all that berth_save says of it.
 * Lifetime: the text is the caller's; see berth_save_to and berth_job.
 */
static inline berth_target berth_to_path(const char *path)
{
    const berth_target target = {BERTH_TARGET_PATH, -1, path, NULL, NULL, NULL, {0}};
    return target;
}

/*
 * A descriptor at its current position, in order, so that pipes and sockets will do. The save
 * neither closes nor syncs it. A failure leaves what was written. SIGPIPE is the caller's to
 * ignore.
 */
static inline berth_target berth_to_fd(int fd)
{
    const berth_target target = {BERTH_TARGET_FD, fd, NULL, NULL, NULL, NULL, {0}};
    return target;
}

/*
 * New memory. When the save succeeds, *bytes is the caller's, to be freed by berth_free. Until
 * then, and if it fails, *bytes is NULL and *nbytes 0.
 */
static inline berth_target berth_to_memory(void **bytes, size_t *nbytes)
{
    const berth_target target = {BERTH_TARGET_MEMORY, -1, NULL, bytes, nbytes, NULL, {0}};
    return target;
}

/*
 * A function of the caller.
 * Lifetime: *sink is the caller's, and must live as long as the target is used.
 */
static inline berth_target berth_to_sink(const berth_sink *sink)
{
    const berth_target target = {BERTH_TARGET_SINK, -1, NULL, NULL, NULL, sink, {0}};
    return target;
}

/*
 * Frees the memory of a save to berth_to_memory.
 * Parameters: bytes: NULL: does nothing.
 * Threads: any.
 */
BERTH_API void berth_free(void *bytes);

/* ---- contents: what a save writes ---- */

/*
 * One record of an archive.
 * Lifetime: if Berth returned it, its text lives as long as the archive or plan.
 */
typedef struct berth_record {
    const char *name; /* without the top folder: "data/3" */
    uint64_t nbytes;
    uint64_t header_offset; /* of the local header */
    uint64_t offset;        /* of the data */
    uint32_t crc32;         /* 0: not computed (or empty) */
    uint16_t method;        /* 0 stored, 8 deflated */
    uint64_t reserved[2];
} berth_record;

/* One record to be written. */
typedef struct berth_new_record {
    const char *name; /* without the top folder */
    uint64_t nbytes;
    const void *data; /* nbytes bytes; or NULL, then: */
    /* Fills the buffer with bytes [offset, offset + nbytes) of the record. Returns 0 or an errno
       value. Called from several threads at once. */
    int (*read)(void *context, void *buffer, size_t nbytes, uint64_t offset);
    void *context;
    bool no_crc32; /* write 0 for this record's CRC even when save.compute_crc32 is on */
    /* The CRC that the bytes must have: other bytes fail the save (BERTH_E_CHECKSUM). 0: not
       known. Compared where CRCs are computed. */
    uint32_t crc32;
    const berth_storage *storage; /* instead of data and read: all of its nbytes bytes; its tree
                                     must live as long as `data`. So a record comes from a device */
    uint64_t reserved[3];         /* 0 */
} berth_new_record;

/* A flag of berth_of_records: the archive has these records only; Berth adds none. */
#define BERTH_RECORDS_COMPLETE 1u
/*
 * A flag of berth_of_records: Berth adds `byteorder` behind `version`, not in front of the
 * storages.
 * Source: torch.save(_disable_byteorder_record=True).
 */
#define BERTH_RECORDS_BYTEORDER_LAST 2u

typedef enum berth_content_kind {
    BERTH_CONTENT_VALUE = 1,
    BERTH_CONTENT_RECORDS = 2,
    BERTH_CONTENT_SAFETENSORS = 3
} berth_content_kind;

/* What a save writes. Made by berth_of_value, berth_of_records or berth_of_safetensors. */
typedef struct berth_content {
    berth_content_kind kind;
    uint32_t flags; /* of the records, or of safetensors */
    const berth_value *value;
    const berth_new_record *records;
    size_t n_records;
    const berth_value *metadata; /* of safetensors */
    uint64_t reserved[3];        /* 0 */
} berth_content;

/* A value: pickled, one record for each storage. */
static inline berth_content berth_of_value(const berth_value *value)
{
    const berth_content content = {BERTH_CONTENT_VALUE, 0, value, NULL, 0, NULL, {0}};
    return content;
}

/*
 * Records, for a caller with its own pickler. records[0] is "data.pkl", the rest "data/<key>" or
 * anything else. Unless `flags` has BERTH_RECORDS_COMPLETE, the save adds `.format_version`,
 * `.storage_alignment`, `byteorder`, `version` and `.data/serialization_id` where PyTorch has them.
 * Then save.byteorder must be this machine's, because records are written as they are. A given
 * `.storage_alignment` must be equal to save.storage_alignment.
 * Parameters: flags: BERTH_RECORDS_COMPLETE or BERTH_RECORDS_BYTEORDER_LAST.
 */
static inline berth_content berth_of_records(const berth_new_record *records, size_t n_records,
                                             uint32_t flags)
{
    const berth_content content = {
        BERTH_CONTENT_RECORDS, flags, NULL, records, n_records, NULL, {0}};
    return content;
}

/* A flag of berth_of_safetensors: leave out what the format cannot hold, instead of refusing it. */
#define BERTH_TENSORS_ONLY 1u
/* A flag of berth_of_safetensors: write a tensor that has several names once for each name. */
#define BERTH_COPY_TIES 2u

/*
 * A safetensors file. Each tensor is written contiguous, under the name that berth_tensor_at gives
 * it. Of tensors that are one (the same elements of one storage) the first by name is written, and
 * __metadata__ has a text from each other name to that one, as the safetensors package writes tied
 * tensors; Berth reads them as tied with load.tied_names.
 * Parameters: value: a dict of tensors, or any value that holds some. metadata: a dict of texts for
 * __metadata__; NULL: {"format": "pt"}, which some readers require. flags: BERTH_TENSORS_ONLY,
 * BERTH_COPY_TIES.
 * Errors: of the save: BERTH_E_UNSUPPORTED: the format cannot hold a value, or a dtype, or the
 * header would have more than 100,000,000 bytes; the message names the value. BERTH_E_UNAVAILABLE:
 * Berth was built without jansson.
 * Source: https://huggingface.co/docs/safetensors. The bytes are those of its save_file.
 */
static inline berth_content berth_of_safetensors(const berth_value *value,
                                                 const berth_value *metadata, uint32_t flags)
{
    const berth_content content = {BERTH_CONTENT_SAFETENSORS, flags, value, NULL, 0, metadata, {0}};
    return content;
}

/*
 * Saves any content to any target.
 * Lifetime: target, content, params and all that they point to must live, and the bytes of tensors
 * and records must not change, until this returns.
 * Returns, errors, threads: as for berth_save.
 */
BERTH_API BERTH_MUST_CHECK int berth_save_to(const berth_target *target,
                                             const berth_content *content,
                                             const berth_params *params, berth_error *error);

/* ---- jobs: saves that go on while the caller does ---- */

/*
 * A save on a thread of its own. It has two events: see berth_job_event.
 *
 * Lifetime, of what the caller gives:
 * - until begin returns: target, path, content, the array of records and their names, sink, params,
 *   params->config and params->archive_name
 * - until staged: the bytes of tensors and records, unchanged; the tree or checkpoint of the value,
 *   which may grow meanwhile but is saved as it was at begin
 * - until done: the descriptor of berth_to_fd; *bytes and *nbytes of berth_to_memory; the contexts
 *   of sink and progress; params->stats and params->storage_stats
 * - until berth_job_free: the job
 * When the process ends, unfinished jobs are lost; their paths keep the old files.
 * Threads: several jobs may run at once, also on one path: each file is whole, and the last job to
 * end wins. Each has its own workers and buffers; io.threads and io.memory_nbytes bound each of
 * them. A job's functions, except berth_job_free, may be called from several threads at once. The
 * job calls the sink and the progress function, maybe before begin has returned; they may cancel
 * the job, but neither wait for it nor free it.
 */
typedef struct berth_job berth_job;

typedef enum berth_job_event {
    BERTH_JOB_STAGED = 1, /* nothing of the caller's memory is read any more: tensors may change */
    BERTH_JOB_DONE = 2    /* the save has ended, as when berth_save_to returns */
} berth_job_event;

/*
 * Copy the tensors before begin returns, so that the job is staged at once. Costs the time of
 * the copy, by io.threads workers, and as much memory as the file has bytes until the job is done.
 * It counts for io.memory_nbytes: where that is set and leaves too little, begin fails with
 * BERTH_E_MEMORY and reports the missing bytes. Without this flag a job copies only what it is
 * writing, and needs no more memory than berth_save_to. It is staged when its last byte is
 * written, before it is synced; if all tensors lie on devices, when the last of them is copied.
 */
#define BERTH_SAVE_SNAPSHOT 0x100u

/*
 * Begins what berth_save_to does: opens the target and reserves its disk space, where the file
 * system can.
 * Parameters: flags: 0 or BERTH_SAVE_SNAPSHOT.
 * Lifetime: see berth_job. *job is the caller's until berth_job_free; NULL on failure.
 * Errors: as for berth_save. Then nothing goes on, and nothing is left.
 * Threads: any.
 */
BERTH_API BERTH_MUST_CHECK int berth_save_begin(const berth_target *target,
                                                const berth_content *content, uint32_t flags,
                                                const berth_params *params, berth_job **job,
                                                berth_error *error);

/*
 * Waits for an event of the job. Can be called again.
 * Parameters: seconds: the time limit; 0: does not wait; less than 0: no limit.
 * Returns: for BERTH_JOB_DONE, what berth_save_to would have returned. For BERTH_JOB_STAGED, 0,
 * even if the job fails later. If the job failed before it was staged: its error; the caller's
 * memory is not read any more then, either.
 * Errors: BERTH_E_TIMEOUT: the event was not there in time; the job goes on.
 * Threads: any. The job's own callbacks may call it only with 0 seconds.
 */
BERTH_API BERTH_MUST_CHECK int berth_job_wait(berth_job *job, berth_job_event event, double seconds,
                                              berth_error *error);

/*
 * How far a job is.
 * Parameters: done_nbytes: bytes written, counted about ten times a second. total_nbytes: of the
 * whole file. Either may be NULL. Both are 0 for NULL as job.
 * Threads: any.
 */
BERTH_API void berth_job_progress(berth_job *job, uint64_t *done_nbytes, uint64_t *total_nbytes);

/*
 * Asks the job to stop, and returns at once. No new write begins, and the job ends with
 * BERTH_E_CANCELLED.
 * Returns: true: the path keeps its old file. False: too late, the new file takes its place, or
 * all is written to the target. Later calls return the same.
 * Threads: any, and the job's own callbacks.
 */
BERTH_API bool berth_job_cancel(berth_job *job);

/*
 * Waits until the job is done, and frees it. The job goes on to its end unless it was cancelled.
 * If it failed and nobody has waited for it, the log reports the error.
 * Parameters: job: NULL: does nothing.
 * Threads: the last call on a job.
 */
BERTH_API void berth_job_free(berth_job *job);

/* ---- plans ---- */

/*
 * What a save would write, before a byte is written. Immutable.
 * Threads: any.
 */
typedef struct berth_plan berth_plan;

/* What a plan is, in numbers. */
typedef struct berth_plan_info {
    uint64_t nbytes;  /* exact size of the file */
    size_t n_records; /* for berth_plan_at */
    uint64_t reserved[4];
} berth_plan_info;

/*
 * Plans what berth_save_to would write.
 * Parameters: target: only the name of its path counts; NULL: "archive".
 * Lifetime: the plan is the caller's until berth_plan_free. It does not need the value any more.
 * Returns: NULL on failure.
 * Threads: any.
 */
BERTH_API BERTH_MUST_CHECK berth_plan *berth_plan_new(const berth_target *target,
                                                      const berth_content *content,
                                                      const berth_params *params,
                                                      berth_error *error);

/*
 * Frees a plan.
 * Parameters: plan: NULL: does nothing.
 * Threads: no other thread may use it any more.
 */
BERTH_API void berth_plan_free(berth_plan *plan);

/*
 * Fills *info.
 * Parameters: plan: NULL: *info becomes zeros.
 * Threads: any.
 */
BERTH_API void berth_plan_get_info(const berth_plan *plan, berth_plan_info *info);

/*
 * Fills *record with record i in the file's order. Its crc32 is 0: no byte was read yet.
 * Lifetime: its name lives as long as the plan.
 * Errors: BERTH_E_NOT_FOUND: there is no record i. BERTH_E_ARGUMENT: NULL.
 * Threads: any.
 */
BERTH_API int berth_plan_at(const berth_plan *plan, size_t i, berth_record *record);

/*
 * Renders a range of the planned file without its storages: where their bytes will be, the buffer
 * gets zeros, and so it does for CRCs; the id is the digit 0. With the bytes of the storages from
 * anywhere, such as other files, this makes a source that berth_open_source opens: the file that
 * berth_save_to would write, without writing it.
 * Parameters: plan: of a value or of safetensors; storages may be BERTH_ELSEWHERE. buffer: nbytes
 * bytes. offset: in the file.
 * Errors: BERTH_E_ARGUMENT: the plan is NULL or of records, or the range is not inside the file.
 * BERTH_E_MEMORY.
 * Threads: any.
 */
BERTH_API int berth_plan_read(const berth_plan *plan, void *buffer, size_t nbytes, uint64_t offset,
                              berth_error *error);

/* ---- files of other formats ---- */

/*
 * A file of any format that replaces the file at its path as a whole or not at all. What berth_save
 * says about paths, rights and durability holds for it too.
 */
typedef struct berth_atomic_file berth_atomic_file;

/*
 * Begins a file of a fixed size, and reserves its room as far as the file system can tell.
 * Parameters: nbytes: size of the file; bytes that are never written are 0. params: only config
 * (save.durability), stats and progress are used. berth_atomic_commit calls progress once, before
 * the rename, so that it can cancel.
 * Lifetime: *file is the caller's until berth_atomic_commit or berth_atomic_abort; NULL on failure.
 * `params->stats` and the progress context must live until then.
 */
BERTH_API BERTH_MUST_CHECK int berth_atomic_begin(const char *path, uint64_t nbytes,
                                                  const berth_params *params,
                                                  berth_atomic_file **file, berth_error *error);

/*
 * Writes nbytes bytes at `offset`, through the page cache.
 * Errors: BERTH_E_ARGUMENT: the range is not inside the file. After any other error
 * berth_atomic_commit fails with it as well.
 * Threads: any, at the same time.
 */
BERTH_API BERTH_MUST_CHECK int berth_atomic_write(berth_atomic_file *file, const void *bytes,
                                                  size_t nbytes, uint64_t offset,
                                                  berth_error *error);

/*
 * Makes the file durable and puts it at its path.
 * Lifetime: frees `file`, on failure too.
 */
BERTH_API BERTH_MUST_CHECK int berth_atomic_commit(berth_atomic_file *file, berth_error *error);

/*
 * Gives up: the path keeps its old file.
 * Parameters: file: NULL: does nothing.
 * Lifetime: frees `file`.
 */
BERTH_API void berth_atomic_abort(berth_atomic_file *file);

/* ---- temporary files that were left behind ---- */

/* Whether the save that owns a temporary file is still running. */
typedef enum berth_temporary_state {
    BERTH_TEMPORARY_UNKNOWN = 0, /* it is of another host or container, or older than the last
                                    start of this host, or its file system keeps no owner */
    BERTH_TEMPORARY_ALIVE = 1,
    BERTH_TEMPORARY_DEAD = 2
} berth_temporary_state;

/*
 * One temporary file.
 * Lifetime: the struct and its texts are valid during the callback only.
 */
typedef struct berth_temporary {
    const char *name;
    uint64_t nbytes;
    double age_seconds; /* since it was last written to */
    berth_temporary_state state;
    const char *owner; /* "1 <boot id> <pid namespace> <time namespace> <pid> <start>"; "": none */
    bool removed;
    const berth_error *error; /* why it could not be removed; NULL: removed, or not tried */
} berth_temporary;

/* Receives each temporary file, on the thread that called berth_clean_temporaries. */
typedef void (*berth_temporary_function)(void *context, const berth_temporary *temporary);

/* For berth_clean_temporaries: remove files that are dead, and unknown ones older than
 * min_age_seconds. */
#define BERTH_CLEAN_REMOVE 1u

/*
 * Reports the temporary files of saves in a folder, in no order. It never removes one that is known
 * to be alive.
 * Parameters: flags: 0 or BERTH_CLEAN_REMOVE. min_age_seconds: choose an age that no save on
 * another host takes between two writes; a day is safe. If the file of a running save is removed
 * all the same, that save fails and its path keeps the old file.
 * Errors: BERTH_E_SYSTEM, BERTH_E_NOT_FOUND: the folder cannot be listed.
 * Threads: any. `report` is called on the calling thread.
 */
BERTH_API int berth_clean_temporaries(const char *folder, uint32_t flags, double min_age_seconds,
                                      berth_temporary_function report, void *context,
                                      berth_error *error);

/* ---- many writers, one file ---- */

/*
 * A save of one checkpoint whose bytes several processes have. One process is the coordinator; it
 * plans the file and reserves its space, and in the end completes the file and replaces the old
 * one:
 *
 *     berth_joint_begin(path, outline, 4, NULL, &joint, &error)
 *     berth_joint_get_info(joint, &info)                            // info.ticket: to all writers
 *     berth_joint_add_receipt(joint, receipt, nbytes, &error)       // one from each writer
 *     berth_joint_finish(joint, &error)
 *
 * Each of the 4 writers, one of which may be the coordinator's process, calls
 *
 *     const berth_slice slices[] = {berth_slice_of("weight", starts, lengths, data)};
 *     berth_joint_write(ticket, ticket_nbytes, number, slices, 1, NULL, &receipt, &nbytes, &error)
 *
 * and sends the receipt back. Tickets and receipts are bytes; the caller carries them, by MPI or in
 * any other way. All processes need the same version of Berth and see the file system of the path,
 * under the same path.
 *
 * The outline is the value to be saved. Storages whose bytes are with the writers are made of
 * BERTH_ELSEWHERE; the coordinator writes all others itself. The file is byte for byte the one that
 * berth_save of the whole value would write to that path, whoever wrote which slice. What
 * berth_save says about paths, rights and temporaries holds for it too.
 *
 * No block of the file (4096 bytes, or a page) is written by two processes. The bytes of a slice
 * that lie in blocks with bytes of others travel in the receipt: at most 8 KiB for each range of a
 * slice, and small slices as a whole. With save.storage_alignment=4096 and slices of whole 4096
 * bytes there are none. Between whole tensors of one writer that follow each other in the file
 * nothing travels either: it writes their headers, too. Where all writers together have more than
 * 16 MiB of them, an exchange (see below) is better: then the coordinator gets only what shares a
 * block with a header.
 *
 * A slice along another dimension than the first lies in runs: one for each row, say. Runs of 1 MiB
 * and more are written by the writer that has them. Shorter ones would share nearly every block
 * with other writers; they need an exchange of bytes between the writers, which the caller carries,
 * too:
 *
 *     berth_params params = {.exchange = by_my_network, .exchange_context = network};
 *
 * Then each writer collects the short runs of all, and many fragments, in windows of the file, 8
 * MiB at a time, and writes each while the next one is exchanged. Either all writers of a save give
 * an exchange, or none does.
 *
 * If a writer or the coordinator fails or dies, the path keeps its old file, as long as
 * berth_joint_finish was not called. A coordinator that dies leaves its temporary, as any save that
 * is killed. A process that may still be in berth_joint_write must be gone before its number is
 * given to another one, and before berth_joint_finish is called: it has the new file open.
 */
typedef struct berth_joint berth_joint;

/* The largest number of writers. */
#define BERTH_MAX_WRITERS 1048576

/*
 * Begins a joint save in the coordinator.
 * Parameters: outline: see above. n_writers: 1 to BERTH_MAX_WRITERS; each of them must give a
 * receipt, also if it has nothing to write. params: as for berth_save, without storage_stats.
 * Lifetime: the outline, and the bytes that it has, must live unchanged until the joint save ends,
 * and so must what params points to. *joint is the caller's until berth_joint_finish or
 * berth_joint_abort; NULL on failure.
 * Errors: as for berth_save. BERTH_E_ARGUMENT: a storage that is elsewhere has no tensor in the
 * outline, so that no slice could name it; or the path leads to a file without a name.
 * BERTH_E_AMBIGUOUS: two tensors that are elsewhere have the same path (see berth_find).
 */
BERTH_API BERTH_MUST_CHECK int berth_joint_begin(const char *path, const berth_value *outline,
                                                 size_t n_writers, const berth_params *params,
                                                 berth_joint **joint, berth_error *error);

/* What a joint save is, for its writers and in numbers. */
typedef struct berth_joint_info {
    const void *ticket; /* for berth_joint_write */
    size_t ticket_nbytes;
    uint64_t nbytes; /* exact size of the file */
    size_t n_writers;
    size_t n_receipts; /* that were added */
    uint64_t reserved[4];
} berth_joint_info;

/*
 * Fills *info.
 * Parameters: joint: NULL: *info becomes zeros.
 * Lifetime: the ticket lives as long as the joint save.
 */
BERTH_API void berth_joint_get_info(const berth_joint *joint, berth_joint_info *info);

/*
 * Adds the receipt of one writer, in any order. It is treated as bytes of a stranger.
 * Parameters: receipt: nbytes bytes, which are copied.
 * Errors: BERTH_E_TRUNCATED, BERTH_E_CHECKSUM: it was cut or changed. BERTH_E_UNSUPPORTED: it is of
 * another version of Berth. BERTH_E_ARGUMENT: it is no receipt, of another save, invalid, or that
 * writer's second one. After an error the joint save is as before; another receipt may be added.
 */
BERTH_API BERTH_MUST_CHECK int berth_joint_add_receipt(berth_joint *joint, const void *receipt,
                                                       size_t nbytes, berth_error *error);

/*
 * Writes the rest of the file, makes it durable, and puts it at its path. In debug mode
 * (BERTH_SERIALIZATION_DEBUG=1) all that the writers wrote is read, and compared with the checksums
 * in their receipts.
 * Lifetime: frees `joint`, on failure too.
 * Errors: BERTH_E_ARGUMENT: a writer has given no receipt; or a byte of a storage was written by
 * nobody, or by two writers. The message names the writers, the storage and its tensor. Otherwise
 * as for berth_save.
 */
BERTH_API BERTH_MUST_CHECK int berth_joint_finish(berth_joint *joint, berth_error *error);

/*
 * Gives up: the path keeps its old file.
 * Parameters: joint: NULL: does nothing.
 * Lifetime: frees `joint`.
 */
BERTH_API void berth_joint_abort(berth_joint *joint);

typedef enum berth_slice_kind {
    BERTH_SLICE_WHOLE = 1,
    BERTH_SLICE_BOX = 2,
    BERTH_SLICE_BYTES = 3
} berth_slice_kind;

/* What a writer has. Made by berth_slice_whole, berth_slice_of or berth_slice_bytes. */
typedef struct berth_slice {
    berth_slice_kind kind;
    const char *name; /* name or path of a tensor of the outline, as berth_tensor_at gives them */
    const void *data; /* in this machine's byte order; must not change during berth_joint_write */
    const int64_t *starts;
    const int64_t *lengths;
    uint64_t offset;
    uint64_t nbytes;
    const char *device; /* where `data` lies: "cuda:0", ...; NULL: in memory of the host. It is the
                           caller's to set. berth_joint_write copies such slices to the host first,
                           and keeps them to its end: that takes as much memory as their bytes */
    void *ready;        /* an event of that device, as for berth_device_storage_new; NULL: none */
    uint64_t reserved[2]; /* 0 */
} berth_slice;

/* All elements of a contiguous tensor, in row-major order. */
static inline berth_slice berth_slice_whole(const char *name, const void *data)
{
    const berth_slice slice = {BERTH_SLICE_WHOLE, name, data, NULL, NULL, 0, 0, NULL, NULL, {0}};
    return slice;
}

/*
 * Elements starts[d] to starts[d] + lengths[d] - 1 of each dimension d of a contiguous tensor.
 * Parameters: data: these elements alone, in row-major order.
 * Shapes: starts, lengths: one number for each dimension of the tensor.
 */
static inline berth_slice berth_slice_of(const char *name, const int64_t *starts,
                                         const int64_t *lengths, const void *data)
{
    const berth_slice slice = {BERTH_SLICE_BOX, name, data, starts, lengths, 0, 0, NULL, NULL, {0}};
    return slice;
}

/* Bytes of the storage of a tensor, from `offset` on. */
static inline berth_slice berth_slice_bytes(const char *name, uint64_t offset, uint64_t nbytes,
                                            const void *data)
{
    const berth_slice slice = {
        BERTH_SLICE_BYTES, name, data, NULL, NULL, offset, nbytes, NULL, NULL, {0}};
    return slice;
}

/*
 * The share of one writer in a storage that all of them have. Shares are whole MiB, but for the end
 * of the storage. A writer whose share is empty has *share_nbytes 0.
 * Parameters: index: the number of the storage among those that are dealt out, so that small ones
 * do not all go to one writer. n_writers: 1 or more. offset, share_nbytes: receive the share.
 */
static inline void berth_deal_bytes(size_t index, uint64_t nbytes, size_t n_writers, size_t writer,
                                    uint64_t *offset, uint64_t *share_nbytes)
{
    const uint64_t unit = (uint64_t)1 << 20;
    const uint64_t n_units = nbytes / unit + (nbytes % unit != 0);
    const uint64_t turn = (writer + index) % n_writers;
    const uint64_t each = n_units / n_writers, more = n_units % n_writers;
    const uint64_t begin = (each * turn + (turn < more ? turn : more)) * unit;
    const uint64_t end = begin + (each + (turn < more)) * unit;
    *offset = begin < nbytes ? begin : nbytes;
    *share_nbytes = (end < nbytes ? end : nbytes) - *offset;
}

/*
 * Writes slices of one writer into the file, makes them durable as the coordinator's
 * save.durability says, and gives a receipt for the coordinator. The ticket is treated as bytes of
 * a stranger: nothing but a temporary that belongs to its save is ever written to.
 *
 * With params->exchange all writers call this at the same time, and wait for each other. The
 * exchange is called twice, and if any of them has short runs or many fragments, more often for
 * each window. If one writer fails, all return an error: that one its own, the others
 * BERTH_E_PEER, which names it. So nobody waits in vain, with three exceptions, which the caller
 * must pass on to the others as a failure of their exchange: a writer that dies; one that returns
 * without having called its exchange, because it could not read the ticket, or had no memory for
 * 48 bytes a writer; and one whose exchange is wrong (BERTH_E_ARGUMENT): it gives bytes of one
 * writer as those of another, or announces a message that is larger than any that a writer sends,
 * so that there is no room for it. Berth cannot know whether the exchange has as many writers as
 * the ticket says: do not take a ticket from a stranger for it. Beside the slices, the receipt,
 * and what any save takes, the exchange takes at most 64 MiB of memory (with more than 18,000
 * writers 2 KiB for each of these more), and 96 bytes for each range of a slice.
 * Parameters: ticket: ticket_nbytes bytes. writer: its number, less than the n_writers of
 * berth_joint_begin. slices: n_slices of them, which do not overlap; several may be of one tensor.
 * params: its config (what decides bytes is the coordinator's), progress, stats and exchange are
 * used.
 * Lifetime: *receipt is the caller's, to be freed by berth_free; NULL on failure.
 * Errors: BERTH_E_NOT_FOUND: a name that the outline does not have, or the save has ended.
 * BERTH_E_ARGUMENT: a slice is invalid, or overlaps another one; the ticket is invalid, or of
 * another save; what another writer sent is invalid. BERTH_E_TRUNCATED, BERTH_E_CHECKSUM,
 * BERTH_E_UNSUPPORTED: the ticket was cut, changed, or is of another version.
 * BERTH_E_UNSUPPORTED: a slice lies in runs of less than 1 MiB, and there is no exchange.
 * BERTH_E_ARGUMENT, BERTH_E_DEVICE: the data of a slice are not on its device, or it failed.
 * BERTH_E_ARGUMENT: this process cannot read the data of a slice without a device, as those that
 * lie on one; where the system lets a process find out.
 * BERTH_E_CALLBACK: the exchange failed. BERTH_E_PEER: another writer failed. Otherwise as for
 * berth_save. After an error nothing of what was written counts; berth_joint_write may be called
 * again; with an exchange, by all.
 * Threads: any; one at a time for one number.
 */
BERTH_API BERTH_MUST_CHECK int berth_joint_write(const void *ticket, size_t ticket_nbytes,
                                                 size_t writer, const berth_slice *slices,
                                                 size_t n_slices, const berth_params *params,
                                                 void **receipt, size_t *receipt_nbytes,
                                                 berth_error *error);

/* ===================================================================== */
/*  Loading                                                              */
/* ===================================================================== */

/*
 * Opens a checkpoint, as torch.load(path, weights_only=True, mmap=True) does: reads its head,
 * parses the pickle, and checks the file as load.check says. The bytes of tensors are mapped or
 * read when they are needed.
 *
 * What each level of load.check looks at:
 * - none: only the head. Storages are where the layout puts them. What lies behind the last record
 *   of the head is not checked.
 * - directory: also the end records and all entries of the directory. Storages must be where the
 *   layout puts them, and every byte of the file must belong to an entry, so that no other reader
 *   finds other records or another archive in between. The local headers and descriptors of all
 *   records that are no storages.
 * - headers: also the local headers and descriptors of storages.
 * - data: also the CRC of every record, and the indices of sparse tensors
 *   (berth_tensor_check_indices).
 *
 * With load.check=data no byte is handed out before the CRC of its record was compared. Where
 * storages are mapped, berth_open does that (params->progress is called, and may cancel). Else it
 * happens when a storage, or a range of it, is first read. berth_open always reads the indices of
 * sparse tensors then, wherever they are; with load.inflate=off not those that are deflated.
 *
 * With load.prefetch=populate, advise or read, a prefetch of all storages begins, as by
 * berth_prefetch_begin, and ends with berth_close. berth_tensor_data counts as
 * berth_prefetch_advance, but does not wait.
 *
 * A storage that is deflated (`zip -r`) is inflated as a whole when any of its bytes are asked for,
 * to memory that counts for io.memory_nbytes and stays until berth_close; its CRC is compared.
 * Opening inflates no storage, but with load.check=data indices of sparse tensors. With
 * load.inflate=off that is BERTH_E_UNSUPPORTED. Rows of it, and a
 * load of it to a device, are BERTH_E_UNSUPPORTED, too.
 *
 * If a mapped file is truncated, the kernel kills the process (SIGBUS) when it touches the lost
 * part. Where that may happen, set load.mmap=off: then bytes are read into memory. Replacing a file
 * by a rename is safe; berth_save does that.
 *
 * Parameters: params: may be NULL.
 * Lifetime: *checkpoint is the caller's until berth_close; NULL on failure.
 * Errors: BERTH_E_NOT_FOUND, BERTH_E_SYSTEM: the file cannot be read. BERTH_E_NOT_CHECKPOINT,
 * BERTH_E_ARCHIVE, BERTH_E_PICKLE, BERTH_E_FORBIDDEN, BERTH_E_TENSOR, BERTH_E_OFFSETS,
 * BERTH_E_CHECKSUM, BERTH_E_TRUNCATED, BERTH_E_UNSUPPORTED: what is wrong with it.
 * Threads: any. One checkpoint may be used from several threads where a function's comment says so.
 */
BERTH_API BERTH_MUST_CHECK int berth_open(const char *path, const berth_params *params,
                                          berth_checkpoint **checkpoint, berth_error *error);

/* What a berth_source is. */
typedef enum berth_source_kind {
    BERTH_SOURCE_FUNCTION = 0,
    BERTH_SOURCE_PATH = 1,
    BERTH_SOURCE_FD = 2,
    BERTH_SOURCE_MEMORY = 3
} berth_source_kind;

/*
 * Where a load comes from. The next four functions make one.
 */
typedef struct berth_source {
    berth_source_kind kind;
    int fd; /* of BERTH_SOURCE_FD. Of a function: above 0, if that reads this regular file, as pread
               does: then short reads cost little, and the system is told which are next. It must
               stay open until what was opened is closed */
    const char *path; /* of BERTH_SOURCE_PATH. Of others: what the command `berth` takes in place of
                         a file to read the same, such as a URL: messages that propose such a
                         command have it. NULL: nothing */
    const void *bytes;
    uint64_t nbytes;  /* size of the whole; for memory and functions */
    const char *name; /* of a function, for messages; NULL: "source" */
    /* Fills the buffer with bytes [offset, offset + nbytes) of the source. Returns 0 or an errno
       value. Called from several threads at once. */
    int (*read)(void *context, void *buffer, size_t nbytes, uint64_t offset);
    void *context;
    uint64_t reserved[4]; /* 0 */
} berth_source;

/*
 * A file, with all that berth_open says of it.
 * Lifetime: the text is the caller's, until it is opened.
 */
static inline berth_source berth_from_path(const char *path)
{
    const berth_source source = {BERTH_SOURCE_PATH, -1, path, NULL, 0, NULL, NULL, NULL, {0}};
    return source;
}

/* An open file. The descriptor is duplicated, not kept; its position does not matter. */
static inline berth_source berth_from_fd(int fd)
{
    const berth_source source = {BERTH_SOURCE_FD, fd, NULL, NULL, 0, NULL, NULL, NULL, {0}};
    return source;
}

/* Memory. The bytes must live, unchanged, until what was opened is closed. */
static inline berth_source berth_from_memory(const void *bytes, size_t nbytes)
{
    const berth_source source = {
        BERTH_SOURCE_MEMORY, -1, NULL, bytes, nbytes, NULL, NULL, NULL, {0}};
    return source;
}

/* A function of the caller. Its context must live until what was opened is closed. */
static inline berth_source berth_from_function(int (*read)(void *context, void *buffer,
                                                           size_t nbytes, uint64_t offset),
                                               void *context, uint64_t nbytes, const char *name)
{
    const berth_source source = {
        BERTH_SOURCE_FUNCTION, -1, NULL, NULL, nbytes, name, read, context, {0}};
    return source;
}

/*
 * Opens a checkpoint from any source. All else is as for berth_open.
 * Lifetime: *source is copied. The memory or context in it must live until berth_close.
 * Errors: BERTH_E_CALLBACK: the function of the source failed. BERTH_E_ARGUMENT: no source, or one
 * of an invalid kind.
 */
BERTH_API BERTH_MUST_CHECK int berth_open_source(const berth_source *source,
                                                 const berth_params *params,
                                                 berth_checkpoint **checkpoint, berth_error *error);

/*
 * Closes a checkpoint and frees everything that was returned from it.
 * Parameters: checkpoint: NULL: does nothing.
 * Threads: no other thread may use the checkpoint any more.
 */
BERTH_API void berth_close(berth_checkpoint *checkpoint);

/*
 * Closes the descriptors of a checkpoint whose memory is used further: maps and what was read stay
 * until berth_close, also without the file. So a process can hold more maps than descriptors. Does
 * nothing where there is no descriptor, or while a prefetch by load.prefetch reads the file.
 *
 * What was not loaded cannot be loaded any more: BERTH_E_ARGUMENT.
 * Parameters: checkpoint: NULL: does nothing.
 * Threads: no other thread may call a function with the checkpoint meanwhile. Memory may be used.
 */
BERTH_API void berth_close_descriptors(berth_checkpoint *checkpoint);

/*
 * The value that was saved.
 * Lifetime: the checkpoint's.
 * Returns: the value; NULL for NULL.
 * Threads: any.
 */
BERTH_API const berth_value *berth_root(const berth_checkpoint *checkpoint);

/*
 * Finds a value by its name or its path. A name is made of dict keys and list indices with dots
 * between them: "model.0.weight". A path is unambiguous: "['model'][0]['a.b']". The empty name is
 * the root. If a tensor and another value have the same name, the tensor is found.
 * Parameters: name: UTF-8, ends with NUL.
 * Lifetime: the checkpoint's.
 * Returns: the value; NULL on failure.
 * Errors: BERTH_E_NOT_FOUND: the message says what is near. BERTH_E_AMBIGUOUS: the message names
 * both paths, or the step at which two keys look the same (NaNs, very long tuples).
 * Threads: any.
 */
BERTH_API const berth_value *berth_find(const berth_checkpoint *checkpoint, const char *name,
                                        berth_error *error);

/*
 * Finds a tensor or a Parameter by its name or path.
 * Lifetime: the checkpoint's.
 * Returns: the tensor; NULL on failure.
 * Errors: BERTH_E_ARGUMENT: the value of that name is no tensor. Otherwise as for berth_find.
 * Threads: any.
 */
BERTH_API const berth_tensor *berth_find_tensor(const berth_checkpoint *checkpoint,
                                                const char *name, berth_error *error);

/*
 * The elements of a tensor that a program knows: finds `name`, compares dtype and shape, and
 * returns what berth_tensor_data returns.
 * Shapes: shape: `rank` sizes; -1: any size. NULL if rank is 0.
 * Lifetime: the checkpoint's.
 * Returns: the elements, contiguous and row-major; NULL on failure.
 * Errors: BERTH_E_NOT_FOUND, BERTH_E_AMBIGUOUS: as for berth_find. BERTH_E_ARGUMENT: it is no
 * tensor, or a meta tensor, or has another dtype or shape. BERTH_E_UNSUPPORTED: it is not
 * contiguous. Otherwise as for berth_tensor_data.
 * Threads: any.
 */
BERTH_API BERTH_MUST_CHECK const void *berth_expect(berth_checkpoint *checkpoint, const char *name,
                                                    berth_dtype dtype, int32_t rank,
                                                    const int64_t *shape, berth_error *error);

/*
 * One tensor of the list of berth_tensor_at.
 * Lifetime: the texts are valid until the next call of berth_tensor_at on this checkpoint; all else
 * lives as long as the checkpoint.
 */
typedef struct berth_named_tensor {
    const char *name; /* "a.0.b". It is the path if two tensors have this name, or if the name is
                         empty, looks like a path, holds a NUL or is not UTF-8 */
    const char *path; /* "['a'][0]['b']" */
    const berth_tensor *tensor;
    const berth_value *value; /* the value there: TENSOR, PARAMETER or SUBCLASS */
    uint64_t offset;          /* of the first element in the file; BERTH_NO_OFFSET: meta, or its
                                 storage is deflated */
    bool parameter;
    bool requires_grad;
    uint64_t reserved[4];
} berth_named_tensor;

/*
 * The number of tensors in a checkpoint. A container that is used in two places counts once. The
 * parts of sparse tensors count as "name.indices", "name.values", ...
 * Threads: any.
 */
BERTH_API size_t berth_tensor_count(const berth_checkpoint *checkpoint);

/*
 * Tensor i, in the order of berth_value_walk.
 * Parameters: named: receives the tensor and its names.
 * Errors: BERTH_E_NOT_FOUND: there is no tensor i.
 * Threads: any, but the texts belong to the last call.
 */
BERTH_API int berth_tensor_at(berth_checkpoint *checkpoint, size_t i, berth_named_tensor *named,
                              berth_error *error);

/*
 * The address of a tensor's first element. Its strides apply. The elements are in this machine's
 * byte order and aligned for the dtype. By default they are mapped copy-on-write: a program may
 * cast const away and write, which changes no file. With load.mmap_flags=shared they are read-only.
 * Lifetime: the checkpoint's.
 * Returns: the address; NULL on failure.
 * Errors: BERTH_E_ARGUMENT: a meta tensor, or it is on a device (berth_set_storage_rules).
 * BERTH_E_TRUNCATED, BERTH_E_CHECKSUM, BERTH_E_MEMORY, BERTH_E_SYSTEM: it cannot be loaded.
 * Threads: any.
 */
BERTH_API const void *berth_tensor_data(berth_checkpoint *checkpoint, const berth_tensor *tensor,
                                        berth_error *error);

/* The address of a storage's first byte. All else is as for berth_tensor_data. */
BERTH_API const void *berth_storage_data(berth_checkpoint *checkpoint, const berth_storage *storage,
                                         berth_error *error);

/*
 * Copies elements [first, first + n) of the row-major order into `buffer`, whatever the strides. If
 * the tensor is contiguous, only these elements are read. Long ranges are read by io.threads
 * workers: from the map; or, if the storage is not mapped, as its method says, past the page cache
 * through buffers of at most io.memory_nbytes, or straight into `buffer`. A tensor on a device is
 * copied from there. Conjugate and negative bits (BERTH_CONJ, BERTH_NEG) are applied to the copy:
 * it has the elements that PyTorch shows. To copy the stored ones, clear these flags in a copy of
 * *tensor.
 * Parameters: buffer: room for n items.
 * Errors: BERTH_E_ARGUMENT: the range is not inside the tensor. BERTH_E_UNSUPPORTED: a part of a
 * tensor with several elements in an item, or one that is not contiguous; or a bit has no meaning
 * for the dtype. Otherwise as for berth_tensor_data. After an error the content of the buffer is
 * undefined.
 * Threads: any.
 */
BERTH_API BERTH_MUST_CHECK int berth_tensor_read(berth_checkpoint *checkpoint,
                                                 const berth_tensor *tensor, int64_t first,
                                                 int64_t n, void *buffer, berth_error *error);

/*
 * Copies a slice of a tensor, in row-major order: elements starts[d] to starts[d] + lengths[d] - 1
 * of each dimension d. A run is what lies together in the storage, such as a row of columns. Of a
 * storage in a file that is not loaded or mapped, the gaps between runs are not read, but for
 * these:
 * - between runs of 2 KiB and more: gaps of a twentieth of a run, 32 KiB at most;
 * - between runs of 64 bytes to 2 KiB: gaps below 4 KiB; and where there are such, between runs
 *   below 512 bytes all gaps;
 * - of a function without a file: gaps of up to 32 KiB, between runs of 512 bytes and more;
 * - all gaps between shorter runs, and those that are not in the storage's order; with
 *   load.check=data everything is read.
 * So runs of 2 KiB and more read 1.05 times the slice at most. load.method=direct reads whole
 * blocks, and gaps of up to 32 KiB between runs below 160 KiB.
 * Parameters: buffer: room for the product of lengths, times the size of an item; NULL if that is
 * 0.
 * Shapes: starts, lengths: one number for each dimension of the tensor.
 * Errors: as for berth_tensor_read.
 * Threads: any.
 */
BERTH_API BERTH_MUST_CHECK int berth_tensor_read_slice(berth_checkpoint *checkpoint,
                                                       const berth_tensor *tensor,
                                                       const int64_t *starts,
                                                       const int64_t *lengths, void *buffer,
                                                       berth_error *error);

/*
 * Checks the indices of all sparse tensors in a value, as torch.load does while
 * torch.sparse.check_sparse_tensor_invariants is enabled. berth_open with load.check=data does this
 * for the whole checkpoint, and so does berth_verify. A program that opens with another level and
 * uses the indices as positions calls this first: a wrong index is a position outside the values.
 * - COO: each index is from 0 to the size of its dimension minus 1. If the tensor is marked as
 *   coalesced (BERTH_COALESCED), they are sorted, and none occurs twice.
 * - CSR, BSR, in each batch: crow_indices begin with 0 and end with the number of col_indices;
 *   neighbours differ by 0 to the number of columns (of blocks). col_indices are from 0 to that
 *   number minus 1, and in each row sorted and distinct. Both have one dtype, and the stride 1 in
 *   the last dimension. CSC and BSC: the same with ccol_indices, row_indices, columns and rows.
 *
 * Where PyTorch is lax, so is this: in a COO tensor without sparse dimensions nothing is checked,
 * in a CSR matrix without rows only the range of col_indices.
 *
 * Reads the indices of a tensor once, through a buffer of 1 MiB at most; deflated ones are inflated
 * as for berth_tensor_data. The cost is known before the first read: each element that is read,
 * gaps of up to 63 between indices included, and 16 more for each beginning of a read. Along
 * dimensions of the stride 0 only the first index is read. All that may cost 4 for each byte of the
 * file's storages, and 2^18.
 * Parameters: value: a sparse tensor, or what holds some: berth_root(checkpoint) for all. params:
 * only its progress is used; may be NULL. Progress counts that cost, as int64.
 * Returns: 0: all are good, or they are meta tensors, or there are none.
 * Errors: BERTH_E_TENSOR: an index is wrong; the message has the tensor, its layout, the position,
 * the value and what it must be. BERTH_E_UNSUPPORTED: they are views that repeat the elements of
 * the file's storages so often that checking them would cost more. BERTH_E_ARGUMENT: a sparse
 * tensor is of another checkpoint. BERTH_E_CANCELLED. Otherwise as for berth_tensor_read.
 * Threads: any.
 */
BERTH_API BERTH_MUST_CHECK int berth_tensor_check_indices(berth_checkpoint *checkpoint,
                                                          const berth_value *value,
                                                          const berth_params *params,
                                                          berth_error *error);

/* ---- storages: which, how, and what happened to them ---- */

/*
 * A selection of tensors: those whose name fits the pattern, and those of the array. NULL or zeros:
 * everything in the checkpoint.
 * Lifetime: text and array are the caller's, until the function returns.
 * Errors: BERTH_E_NOT_FOUND: no name fits the pattern.
 */
typedef struct berth_selection {
    const char *pattern; /* glob over the names that `berth ls` shows: * ? [...] as in
                            fnmatch(3); * also matches dots. NULL: none */
    const berth_tensor *const *tensors; /* of this checkpoint */
    size_t n_tensors;
    uint64_t reserved[4]; /* 0 */
} berth_selection;

/* How a storage becomes memory: the values of load.method. */
typedef enum berth_load_method {
    BERTH_LOAD_AUTO = 0, /* in a rule: load.method decides */
    BERTH_LOAD_MAP = 1,
    BERTH_LOAD_READ = 2,
    BERTH_LOAD_DIRECT = 3
} berth_load_method;

/* As a device: the device or the host where the storage was when it was saved. */
#define BERTH_DEVICE_SAVED "saved"

/* How and where one storage is loaded. */
typedef struct berth_storage_choice {
    berth_load_method method;
    const char *device; /* "cpu", "cuda:0", ... or BERTH_DEVICE_SAVED */
    uintptr_t address;  /* memory of the caller's on that device; 0: berth_load allocates some, and
                           berth_close frees it */
    uint64_t nbytes;    /* of that memory: at least the storage's size */
    void *ready; /* an event of that device, recorded after the last work that uses the memory;
                    NULL: nothing uses it. Not used without an address */
    uint64_t reserved[2];
} berth_storage_choice;

/*
 * A rule for storages. It applies to a storage if all its conditions hold; zeros always hold.
 *
 * `choose`, if it is not NULL, is called once for each storage to which the rule applies. It gets
 * the method and the device of the rule in *choice, and may change everything in it. It returns 0,
 * or an errno value, which makes berth_set_storage_rules fail. Texts in *choice must be valid until
 * the next call.
 * Threads: `choose` is called on the thread that calls berth_set_storage_rules, without a lock.
 */
typedef struct berth_storage_rule {
    const char *pattern;      /* glob: a name of one of the tensors that view the storage */
    const char *location;     /* glob: where it was when it was saved, "cuda*" */
    uint64_t min_nbytes;      /* its smallest size */
    uint64_t max_nbytes;      /* its largest size; 0: no limit */
    berth_load_method method; /* BERTH_LOAD_AUTO: load.method decides */
    const char *device;       /* "cpu", "cuda:0", ... or BERTH_DEVICE_SAVED; NULL: "cpu" */
    int (*choose)(void *context, const berth_storage *storage, berth_storage_choice *choice);
    void *context;
    uint64_t reserved[2]; /* 0 */
} berth_storage_rule;

/*
 * Chooses how and where each storage is loaded: by the first rule that applies. Storages without a
 * rule follow load.method and go to the host. Nothing is read; devices are opened at once. Storages
 * that are loaded already, or being loaded, stay as they are. In legacy files a storage can be a
 * view of another one; then it follows that one.
 *
 * So one load can mix methods and places: map what the processor needs, read directly what goes
 * elsewhere, and put what was on any GPU on this one:
 *
 *     const berth_storage_rule rule = {.location = "cuda*", .device = "cuda:0"};
 *     berth_set_storage_rules(model, &rule, 1, &error);
 *     berth_load(model, NULL, NULL, &error);
 *     berth_tensor_device_address(model, weight, &address, &error);
 *
 * With load.mmap=off nothing is mapped. A storage that cannot use its method is read, and
 * berth_storage_get_stats says why. On a device BERTH_LOAD_MAP works as BERTH_LOAD_READ.
 * Parameters: rules: NULL if n_rules is 0.
 * Lifetime: rules and their texts are the caller's, until the function returns. Memory at an
 * `address` is the caller's to free, after failures too; it must be there until berth_close. The
 * event `ready` must live, and not be recorded again, until the load of the storage
 * (berth_load, berth_tensor_device_address) has returned 0, or until berth_close; after a failed
 * load the next one waits for it again.
 * Errors: BERTH_E_ARGUMENT: invalid method or device; or the memory at an address is too small, or
 * not that device's. BERTH_E_DEVICE: a device cannot be opened. BERTH_E_CALLBACK: a function
 * failed. After an error nothing has changed.
 * Threads: any.
 */
BERTH_API int berth_set_storage_rules(berth_checkpoint *checkpoint, const berth_storage_rule *rules,
                                      size_t n_rules, berth_error *error);

/*
 * Loads all storages of the selected tensors, so that berth_tensor_data and berth_storage_data need
 * not wait. io.threads workers read neighbours in the file together, in requests of
 * io.chunk_nbytes, into aligned memory in large pages. Mapped storages are made present. With
 * load.check=data the CRCs are compared on the way. Storages that berth_set_storage_rules sends to
 * a device are loaded there, and get no address on the host.
 *
 * load.method or berth_set_storage_rules say how each storage becomes memory. With `auto`, a file
 * that is in the page cache (a sample decides) is mapped. A cold file on a disk is read past the
 * page cache, if 64 MiB or more are wanted and there is free memory for them; if memory is short,
 * it is mapped. Otherwise it is read. If this process has loaded the same file before, or with
 * load.reuse=often, a cold file is read into the page cache instead, where memory has room for both
 * copies: the next load maps it. It is never mapped with load.mmap=off, on a network file system or
 * on FUSE, where others may truncate a mapped file. From a disk that rotates, one worker reads.
 *
 * A load is all or nothing: if it fails or is cancelled, it has loaded nothing. It may be repeated.
 * Parameters: selection: NULL: everything. params->config: NULL: the configuration with which the
 * checkpoint was opened. params->progress must not ask for data of the same checkpoint.
 * params->stats: requested_nbytes are those of the selected storages; moved_nbytes those that were
 * read now, with gaps of up to 32 KiB between neighbours.
 * Errors: BERTH_E_MEMORY: before anything is read; the message names the first tensor that does not
 * fit, and the missing bytes. BERTH_E_CHECKSUM. BERTH_E_CANCELLED. Otherwise as for
 * berth_tensor_data.
 * Threads: any. A storage that another thread is loading is waited for.
 */
BERTH_API int berth_load(berth_checkpoint *checkpoint, const berth_selection *selection,
                         const berth_params *params, berth_error *error);

/* One destination of berth_load_into. Set either storage or tensor. */
typedef struct berth_destination {
    const berth_storage *storage; /* all of its bytes */
    const berth_tensor *tensor;   /* its elements in row-major order, whatever the strides, as they
                                     are stored: no conjugate or negative bit is applied */
    void *address;                /* the caller's memory, on the host */
    uint64_t nbytes;              /* size of that memory: at least what goes there */
    uint64_t is_new;              /* 1: it was mapped for this, and nobody has touched it: its pages
                                     are chosen by io.large_pages; 0: they are as they are */
    uint64_t reserved[1];         /* 0 */
} berth_destination;

/*
 * Reads storages and tensors into the caller's memory. The storages do not become memory of the
 * checkpoint. io.threads workers read neighbours in the file together. Reads go past the page cache
 * with load.method=direct, or with `auto` if 64 MiB or more are cold on a disk. They go straight to
 * the caller's memory if address and file offset are equal modulo the block size, else through
 * buffers of at most io.memory_nbytes. Rules of berth_set_storage_rules do not apply. The bytes are
 * in this machine's order. Elements of a tensor are those that are stored: its conjugate and
 * negative bits (BERTH_CONJ, BERTH_NEG) are not applied; berth_tensor_read applies them.
 * Parameters: destinations: n of them. Two may have the same source; their memory must not overlap.
 * params: as for berth_load.
 * Lifetime: the memory is the caller's. It is written until the function returns.
 * Errors: BERTH_E_ARGUMENT: a destination has neither or both of storage and tensor, is of another
 * checkpoint, or has too little memory; then nothing was read. BERTH_E_CHECKSUM: with
 * load.check=data, a CRC does not match. BERTH_E_CANCELLED: params->progress cancelled. After an
 * error the content of the memory is undefined.
 * Threads: any.
 */
BERTH_API BERTH_MUST_CHECK int berth_load_into(berth_checkpoint *checkpoint,
                                               const berth_destination *destinations, size_t n,
                                               const berth_params *params, berth_error *error);

/*
 * What happened to one storage; for a view, to the storage that it views. moved_nbytes are those of
 * its own bytes that were read for it; 0 if it is mapped.
 * Threads: any.
 */
BERTH_API int berth_storage_get_stats(berth_checkpoint *checkpoint, const berth_storage *storage,
                                      berth_storage_stats *stats, berth_error *error);

/*
 * What the file says about itself.
 * Lifetime: texts live as long as the checkpoint.
 */
typedef struct berth_info {
    const char *archive;       /* the folder in the archive; "" if it is no zip */
    const char *container;     /* "zip"; "legacy": from before PyTorch 1.6; "pt2"; "safetensors" */
    int64_t format_version;    /* 0: no such record */
    int64_t storage_alignment; /* 0: no such record */
    const char *byteorder;     /* "little" or "big" */
    bool byteorder_recorded;   /* false: it is not recorded, load.endianness says it */
    uint64_t nbytes;           /* of the file */
    uint64_t storages_nbytes;
    size_t n_records;         /* of a zip; the other formats have none */
    size_t n_unknown_records; /* neither PyTorch's own nor a storage that is used */
    size_t n_storages;
    size_t n_tensors;
    size_t n_crc32; /* records with a CRC */
    bool calculated_offsets;
    bool repacked;     /* the file says that its offsets can be calculated, but it was zipped again:
                          readers that calculate them misread it. Saving its values again mends it */
    size_t n_deflated; /* storages that are compressed: each is inflated when it is asked for, as a
                          whole (load.inflate). Saving the values again mends it */
    uint64_t reserved[7];
} berth_info;

/*
 * Iterates over the storages of a checkpoint, in the order in which its values name them. Views of
 * other storages, which only the legacy format has, are left out.
 * Parameters: previous: NULL: start.
 * Returns: the next storage; NULL after the last.
 * Threads: any.
 */
BERTH_API const berth_storage *berth_storage_next(const berth_checkpoint *checkpoint,
                                                  const berth_storage *previous);

/*
 * Fills *info. If load.check=none left the directory unread, it is read now.
 * Errors: as for berth_open with load.check=directory.
 * Threads: any.
 */
BERTH_API int berth_get_info(berth_checkpoint *checkpoint, berth_info *info, berth_error *error);

/*
 * The texts of __metadata__ in a safetensors file.
 * Lifetime: that of the checkpoint.
 * Returns: a dict of texts; NULL: the file has none, or is of another format.
 * Threads: any.
 */
BERTH_API const berth_value *berth_metadata(const berth_checkpoint *checkpoint);

/* ---- verification ---- */

/* What berth_verify found, in numbers. */
typedef struct berth_verdict {
    size_t n_records;
    size_t n_storages;
    size_t n_verified;   /* records whose CRC was computed and matches */
    size_t n_unverified; /* records with bytes but without a CRC */
    size_t n_bad;        /* records with an error */
    uint64_t nbytes;     /* of all records */
    bool is_intact; /* the file is whole: nothing of it is missing or changed. It can be refused
                       all the same, for what it is or for what its pickle names */
    uint64_t reserved[3];
} berth_verdict;

/*
 * What berth_verify found in one record.
 * Lifetime: everything is valid during the callback only.
 */
typedef struct berth_record_verdict {
    const char *name; /* without the archive's folder. Of a safetensors file: the tensor's; of the
                         legacy format: the storage's key */
    uint64_t offset;  /* of its data */
    uint64_t nbytes;
    berth_crc_verdict crc32;
    const berth_error *bad; /* NULL: it is good. The message does not name the file */
} berth_record_verdict;

/* Called for each record in the file's order, on the calling thread, after all bytes were read. */
typedef void (*berth_record_function)(void *context, const berth_record_verdict *record);

/*
 * Reads the whole source and checks everything: the archive, the directory against local headers
 * and descriptors, computed offsets, the pickle, the bounds of every tensor, every CRC; if all that
 * is good, the indices of sparse tensors (berth_tensor_check_indices). io.threads workers read
 * every byte once, with buffers of at most io.memory_nbytes; data.pkl, the directory and the
 * indices are read twice.
 *
 * Checking goes on after a bad record. It ends at a record that is not where the directory says. A
 * record that the disk cannot read (EIO, ENODATA, EILSEQ) is bad too, with that system_errno; but
 * not in the legacy format, nor if it holds the directory. If a read fails and its repetition
 * succeeds, that is still an error.
 *
 * A file whose pickle is refused for what it names or for its protocol, and an archive that is no
 * checkpoint (TorchScript), is checked as well: damage is told first. Without any,
 * verdict.is_intact is true, and the error says why the file is refused. berth_list_globals lists
 * what it names.
 * Parameters: report: gets every record; NULL: no report. verdict: receives counts of what was
 * checked until the first failure; may be NULL.
 * Returns: 0; or the status of the first error: one that keeps the source from being opened, else
 * that of the first bad record in the file's order.
 * Threads: any.
 */
BERTH_API BERTH_MUST_CHECK int berth_verify(const berth_source *source, const berth_params *params,
                                            berth_record_function report, void *context,
                                            berth_verdict *verdict, berth_error *error);

/*
 * Called for a class or function that a pickle of a file names; once for each.
 * Parameters: is_allowed: it is one of those that a checkpoint may name, whatever the options say.
 * Lifetime: the texts are valid during the callback. They have at most 100 bytes each, and "?" for
 * each character that is not printable; a text "?" is a name that could not be followed.
 */
typedef void (*berth_global_function)(void *context, const char *module, const char *name,
                                      bool is_allowed);

/*
 * Lists all classes and functions that the pickles of a file name, of any pickle protocol, refused
 * or not, in the order in which they are met. Nothing of them is made or looked up. Of a zip: all
 * records *.pkl; if its directory is damaged, the first record. A file without a pickle has none.
 * At most 4,096 different ones are reported. This is no verdict: a file that berth_verify finds
 * good is good, also if this cannot read it a second time.
 * Returns: 0, also if the file is damaged; or that it cannot be read.
 * Threads: any.
 */
BERTH_API BERTH_MUST_CHECK int berth_list_globals(const berth_source *source,
                                                  berth_global_function report, void *context,
                                                  berth_error *error);

/* ---- records: the container level ---- */

/*
 * Opens the records of an archive, TorchScript and torch.package too, without looking into its
 * pickle. Reads the directory, and checks headers as load.check says; with load.check=directory it
 * reads no header, if all are where the layout puts them.
 * Lifetime: *archive is the caller's until berth_archive_close; NULL on failure. *source is copied;
 * the memory or context in it must live until berth_archive_close.
 * Errors: as for berth_open.
 * Threads: any. Several threads may use one archive.
 */
BERTH_API BERTH_MUST_CHECK int berth_archive_open(const berth_source *source,
                                                  const berth_params *params,
                                                  berth_archive **archive, berth_error *error);

/*
 * Closes an archive. NULL: does nothing.
 * Threads: no other thread may use it any more.
 */
BERTH_API void berth_archive_close(berth_archive *archive);

/*
 * What an archive is.
 * Lifetime: the text lives as long as the archive.
 */
typedef struct berth_archive_info {
    const char *name; /* the top folder, which all records are in */
    size_t n_records;
    uint64_t reserved[4];
} berth_archive_info;

/*
 * Fills *info.
 * Errors: BERTH_E_ARGUMENT: NULL.
 * Threads: any.
 */
BERTH_API int berth_archive_get_info(const berth_archive *archive, berth_archive_info *info);

/*
 * Record i, in the directory's order.
 * Errors: BERTH_E_NOT_FOUND: there is no record i.
 * Threads: any.
 */
BERTH_API int berth_archive_at(const berth_archive *archive, size_t i, berth_record *record);

/*
 * The record of a name.
 * Parameters: name: without the archive's folder.
 * Errors: BERTH_E_NOT_FOUND: there is no record of that name.
 * Threads: any.
 */
BERTH_API BERTH_MUST_CHECK int berth_archive_find(const berth_archive *archive, const char *name,
                                                  berth_record *record, berth_error *error);

/*
 * Reads bytes [offset, offset + nbytes) of a record, inflated if it is deflated. Long ranges are
 * read by io.threads workers.
 * Errors: BERTH_E_ARGUMENT: the range is not inside the record. Otherwise as for berth_tensor_read.
 */
BERTH_API BERTH_MUST_CHECK int berth_archive_read(berth_archive *archive,
                                                  const berth_record *record, void *buffer,
                                                  size_t nbytes, uint64_t offset,
                                                  berth_error *error);

/* ===================================================================== */
/*  Prefetch                                                             */
/* ===================================================================== */

/*
 * Loads the bytes of a selection ahead of the consumer, who uses them: in the file's order, on
 * io.threads threads of its own. It works in passes: never more than one pass lies ahead of the
 * consumer. More passes (load.prefetch_passes) therefore need less memory. 0 passes: as few as fit
 * into io.memory_nbytes or, where that is 0, into half of the free memory. The device's own
 * readahead counts as part of a pass, unless the pass is shorter than four readaheads.
 *
 * The option load.prefetch chooses the method (off: populate):
 *   populate  reads pages and makes them present in the map, so that using them waits for nothing
 *   advise    asks the system to read; the bytes may still be on their way when
 *             berth_prefetch_advance returns
 *   read      reads through a small buffer, so that the page cache holds the bytes; also where
 *             storages are not mapped (load.mmap=off and others), or the system cannot populate
 * berth_prefetch_get_stats says which method it was.
 *
 * Bytes that are in memory already, or that another prefetch of the checkpoint is loading, are not
 * requested again. Nothing is ever dropped: the system drops pages when it needs memory, as it does
 * for any file, and keeps what was written to a copy-on-write map. Left out are storages that have
 * memory of their own, are read directly, or are on a device. A checkpoint from memory, or from a
 * function of the caller, has nothing to prefetch: that is no error, and all calls return at once.
 *
 * Lifetime: free it before berth_close.
 * Threads: any, at the same time, except for berth_prefetch_free, which is the last call.
 */
typedef struct berth_prefetch berth_prefetch;

/*
 * Keeps the pages in memory until berth_prefetch_free (mlock). Only with populate and a map. Locks
 * do not add up: if two prefetches lock the same pages, freeing the first one unlocks them.
 */
#define BERTH_PREFETCH_LOCK 1u
/* The consumer uses the bytes once, in order (MADV_SEQUENTIAL): pages behind it are dropped first.
 */
#define BERTH_PREFETCH_SEQUENTIAL 2u

/*
 * Begins to load, and returns at once.
 * Parameters: selection: NULL: all storages. flags: 0 or BERTH_PREFETCH_LOCK,
 * BERTH_PREFETCH_SEQUENTIAL. params: only its config is used.
 * Lifetime: *prefetch is the caller's, to be freed with berth_prefetch_free; NULL on failure.
 * Errors: BERTH_E_MEMORY: io.memory_nbytes is too small for one window (the message names the
 * missing bytes), or the pages may not be locked (RLIMIT_MEMLOCK).
 */
BERTH_API BERTH_MUST_CHECK int berth_prefetch_begin(berth_checkpoint *checkpoint,
                                                    const berth_selection *selection,
                                                    uint32_t flags, const berth_params *params,
                                                    berth_prefetch **prefetch, berth_error *error);

/*
 * The consumer is about to use elements of this tensor, and is done with all that lies before them
 * in the file. Waits until their bytes are there, and lets one pass behind them be loaded. Returns
 * at once for tensors that are not part of the prefetch. Tensors may be used in any order. The
 * furthest one used so far decides what is ahead.
 * Parameters: first, n: elements [first, first + n) in row-major order; n < 0: all from `first` on.
 * If the tensor is not contiguous, all of it.
 * Errors: BERTH_E_CANCELLED, or what went wrong. Then nothing more is loaded; the tensor can still
 * be used, as without a prefetch.
 */
BERTH_API int berth_prefetch_advance(berth_prefetch *prefetch, const berth_tensor *tensor,
                                     int64_t first, int64_t n, berth_error *error);

/*
 * Loads all that is left, as if it were one pass, and waits for it.
 * Errors: as for berth_prefetch_advance.
 */
BERTH_API int berth_prefetch_wait(berth_prefetch *prefetch, berth_error *error);

/*
 * Stops a prefetch: no request begins any more, and calls that wait return BERTH_E_CANCELLED. It
 * does not wait for requests that have begun.
 * Parameters: prefetch: NULL: does nothing.
 * Threads: any.
 */
BERTH_API void berth_prefetch_cancel(berth_prefetch *prefetch);

/*
 * Cancels a prefetch, waits for what is being loaded (one request per thread at most), and frees
 * it. An error that no call has returned goes to the log.
 * Parameters: prefetch: NULL: does nothing.
 * Threads: the last call on a prefetch.
 */
BERTH_API void berth_prefetch_free(berth_prefetch *prefetch);

/*
 * What a prefetch has done so far. Bytes are those of whole pages.
 * Lifetime: texts are static.
 */
typedef struct berth_prefetch_stats {
    uint64_t n_passes; /* planned */
    uint64_t n_passes_begun;
    uint64_t n_passes_done;
    uint64_t pass_nbytes;       /* of one pass: so much at most lies ahead of the consumer */
    uint64_t window_nbytes;     /* of one request */
    uint64_t requested_nbytes;  /* of the selection */
    uint64_t resident_nbytes;   /* were in memory before. 0 where the system reports that only to
                                   the file's owner and writers (Linux before 6.5) */
    uint64_t shared_nbytes;     /* another prefetch was loading them */
    uint64_t loaded_nbytes;     /* loaded by this one; advise: requested */
    uint64_t peak_ahead_nbytes; /* loaded or being loaded ahead of the consumer, at most */
    uint64_t n_requests;        /* advices and reads */
    uint64_t n_threads;
    double wait_seconds; /* in berth_prefetch_advance and berth_prefetch_wait, of all threads */
    const char *method;  /* "populate", "advise", "read", "populate, then read",
                            "advise, then read", "none" */
    const char *reason;  /* why this method */
    uint64_t reserved[4];
} berth_prefetch_stats;

/*
 * Copies the statistics as they are now.
 * Errors: BERTH_E_ARGUMENT: NULL.
 * Threads: any.
 */
BERTH_API int berth_prefetch_get_stats(berth_prefetch *prefetch, berth_prefetch_stats *stats,
                                       berth_error *error);

/* ===================================================================== */
/*  Rows                                                                 */
/* ===================================================================== */

/*
 * A cache of rows, for tables that are larger than memory: embeddings. Rows of 2-dimensional
 * tensors are requested in batches, ahead of their use. Rows that are not in memory are read by
 * threads of the cache; neighbours are read together:
 *
 *     berth_rows_limits limits = {.cache_nbytes = 1 << 30};
 *     berth_rows_new(&limits, NULL, &rows, &error);
 *     berth_rows_add(rows, model, berth_find_tensor(model, "embedding.weight", &error), &table,
 *                    &error);
 *     berth_rows_prefetch(rows, table, ids, n, &ticket, &error);
 *     ...                                                        // the batch before this one
 *     berth_rows_wait(rows, ticket, pointers, &error);
 *     ...                                                        // pointers[i] is row ids[i]
 *     berth_rows_release(rows, ticket, NULL);
 *
 * Or one call copies rows of any number of ids to the caller's memory:
 *
 *     berth_rows_part part = {.table = table, .ids = ids, .n = n, .output = output};
 *     berth_rows_gather(rows, &part, 1, NULL, &error);
 *
 * Shapes: a table has shape [rows, row elements] and is contiguous. A row is its bytes in this
 * machine's order. Rows are aligned to 64 bytes. If every row is shorter, the alignment is the
 * longest row's length, rounded up to a power of two. All rows of the cache take the memory of the
 * longest one: give tables of very different rows caches of their own.
 *
 * Lifetime: a row stays where it is as long as a ticket for it is live. Of the other rows, those
 * that were requested longest ago are evicted first. A row has `ways` lines of the cache to be in.
 * If live tickets hold all of these, the row is read into the scratch, for its ticket alone.
 *
 * Rows are for reading only: tickets share them. Rows of a storage that is in memory
 * (berth_tensor_data) are copied from there; a later write to that memory does not change rows that
 * are in the cache.
 *
 * Threads: any, at the same time, also with the same ticket, except for berth_rows_free. Release a
 * ticket only when no thread uses its rows any more.
 */
typedef struct berth_rows berth_rows;

/* A request for rows, live until it is released. Never 0; a cache never gives one twice. */
typedef uint64_t berth_ticket;

/*
 * The memory of a cache; all of it is taken when the cache is made. Live tickets need 20 bytes per
 * id and 1 KiB each besides.
 */
typedef struct berth_rows_limits {
    uint64_t cache_nbytes;   /* lines, and 20 bytes of bookkeeping for each */
    uint64_t scratch_nbytes; /* rows that found no line, and up to a half for reading neighbours.
                                0: an eighth of cache_nbytes, in addition to it */
    uint64_t ways;           /* lines that a row can be in: 1 to 64; 0: 16 */
    uint64_t reserved[5];    /* 0 */
} berth_rows_limits;

/*
 * Makes an empty cache. io.threads threads read rows. io.threads=0: 16 threads, because they mostly
 * wait; where reads do not wait, one for each processor. io.threads=1: none, and berth_rows_wait
 * reads.
 * Parameters: limits: see berth_rows_limits; copied. params: only its config is used.
 * Lifetime: *rows is the caller's, to be freed with berth_rows_free; NULL on failure.
 * Errors: BERTH_E_MEMORY: there is not that much memory, or io.memory_nbytes is less than both
 * limits together; the message names the missing bytes. BERTH_E_ARGUMENT: invalid limits.
 */
BERTH_API BERTH_MUST_CHECK int berth_rows_new(const berth_rows_limits *limits,
                                              const berth_params *params, berth_rows **rows,
                                              berth_error *error);

/*
 * Ends all reading and frees the cache. Live tickets and their pointers end with it.
 * Parameters: rows: NULL: does nothing.
 * Threads: no other thread may be in a call with this cache.
 */
BERTH_API void berth_rows_free(berth_rows *rows);

/*
 * Adds a table. If its rows are longer than those of all tables before, the cache is emptied.
 * Parameters: tensor: may be a part of one that was handed out. table: receives the table's number,
 * 0 for the first.
 * Shapes: 2 dimensions, contiguous, no sub-byte dtype.
 * Lifetime: the checkpoint must live as long as the cache.
 * Errors: BERTH_E_MEMORY: the limits are too small for `ways` of its rows, or for one in the
 * scratch; the message names the tensor and the missing bytes. BERTH_E_BUSY: the cache would be
 * emptied, but tickets are live.
 */
BERTH_API BERTH_MUST_CHECK int berth_rows_add(berth_rows *rows, berth_checkpoint *checkpoint,
                                              const berth_tensor *tensor, size_t *table,
                                              berth_error *error);

/*
 * Requests rows of a table, and does not wait.
 * Parameters: ids: n of them, in any order; an id may occur several times. They are copied.
 * Lifetime: *ticket is live until berth_rows_release. On failure it is 0, nothing is held, and
 * nothing was evicted.
 * Errors: BERTH_E_ARGUMENT: an id is no row of the table (the message names both), or there is no
 * such table. BERTH_E_BUSY: live tickets hold too many rows; the message names the missing bytes.
 * BERTH_E_MEMORY: the rows would not fit even without other tickets.
 */
BERTH_API BERTH_MUST_CHECK int berth_rows_prefetch(berth_rows *rows, size_t table,
                                                   const int64_t *ids, size_t n,
                                                   berth_ticket *ticket, berth_error *error);

/*
 * Waits until all rows of a ticket are there, and helps to read them.
 * Parameters: pointers: receives one pointer per id, in the order of the ids; NULL: only wait.
 * Lifetime: the rows stay where they are until the ticket is released.
 * Errors: BERTH_E_ARGUMENT: the ticket is not live. A failed read names record and byte. A row that
 * two tickets requested is read once, and fails for both. Rows that were not read are not kept: the
 * next request reads them again.
 */
BERTH_API BERTH_MUST_CHECK int berth_rows_wait(berth_rows *rows, berth_ticket ticket,
                                               const void **pointers, berth_error *error);

/*
 * Ends a ticket, so that its rows may be evicted. What is still to be read for it is read first.
 * Errors: BERTH_E_ARGUMENT: the ticket is not live; nothing is done.
 */
BERTH_API int berth_rows_release(berth_rows *rows, berth_ticket ticket, berth_error *error);

/* A part of a gather: ids of one table, and where their rows go. */
typedef struct berth_rows_part {
    size_t table;
    const void *ids; /* int64_t, or int32_t */
    size_t n;        /* ids */
    void *output;
    uint64_t stride_nbytes; /* from one row of the output to the next; 0: the length of a row */
    bool ids_are_32_bit;
    bool pruned_to_zero; /* the id -1 stands for no row: its output is zeros */
    uint64_t reserved[4];
} berth_rows_part;

/*
 * Copies rows of one or several tables to the caller's memory. The cache may be smaller than they
 * are: rows that find no line in it, because the gather or live tickets hold the others, go from
 * the file to the output. Rows of the gather evict only rows that were requested before it.
 *
 * The ids are taken in load.rows_passes passes, each for a range of rows. Beside ids and output, N
 * ids in M passes need at most 20 N / M bytes and 2 MiB.
 * Parameters: parts: n_parts of them. Row i of a part's output is the row of its id i. The ids may
 * be in any order and repeated. Outputs may not overlap. params: only its config and its progress
 * are used; bytes of progress are those of the output.
 * Lifetime: parts and ids must not change, and outputs are nobody else's, until this returns.
 * Errors: BERTH_E_ARGUMENT: an id is no row of its table (the message names part, position, id and
 * table), or a part is invalid: then no byte was written. BERTH_E_MEMORY: there is not enough
 * memory, or io.memory_nbytes leaves too little beside the cache. BERTH_E_BUSY: a million tickets
 * are live. BERTH_E_CANCELLED: by the progress function. A failed read names record and byte. After
 * errors other than BERTH_E_ARGUMENT the outputs hold some rows; the cache is as good as before.
 * Threads: any, at the same time; io.threads=1: the calling thread reads.
 */
BERTH_API BERTH_MUST_CHECK int berth_rows_gather(berth_rows *rows, const berth_rows_part *parts,
                                                 size_t n_parts, const berth_params *params,
                                                 berth_error *error);

/* What a gather needs. */
typedef struct berth_rows_gather_estimate {
    uint64_t n_ids;
    uint64_t n_passes;      /* more only if very many ids are of few rows */
    uint64_t memory_nbytes; /* beside ids, outputs and the cache */
    uint64_t output_nbytes; /* of the rows, without what lies between them */
    uint64_t reserved[4];
} berth_rows_gather_estimate;

/*
 * Estimates the memory of a gather, and does nothing else. The ids are not read, and may be NULL,
 * as the outputs may.
 * Parameters: as of berth_rows_gather.
 * Errors: as of berth_rows_gather, before it begins; the estimate is zeros.
 * Threads: any.
 */
BERTH_API BERTH_MUST_CHECK int berth_rows_estimate(berth_rows *rows, const berth_rows_part *parts,
                                                   size_t n_parts, const berth_params *params,
                                                   berth_rows_gather_estimate *estimate,
                                                   berth_error *error);

/* What a cache has done so far. */
typedef struct berth_rows_stats {
    uint64_t n_requests;       /* that got a ticket, and gathers */
    uint64_t n_refused;        /* that found no room */
    uint64_t n_tickets;        /* live now */
    uint64_t n_ids;            /* requested */
    uint64_t n_unique;         /* distinct ids of each request, or pass: n_hits + n_misses */
    uint64_t n_hits;           /* found in a line */
    uint64_t n_awaited;        /* part of n_hits: another ticket was reading them */
    uint64_t n_misses;         /* to be read */
    uint64_t n_conflicts;      /* part of n_misses: into the scratch */
    uint64_t n_evictions;      /* rows that were evicted */
    uint64_t n_reads;          /* requests to the file */
    uint64_t n_merged;         /* part of n_reads: of more than one row */
    uint64_t requested_nbytes; /* of the rows to be read */
    uint64_t read_nbytes;      /* the same with what lies between neighbours */
    uint64_t n_lines;          /* of the cache */
    uint64_t line_nbytes;
    uint64_t n_passes;   /* of gathers */
    uint64_t n_streamed; /* part of n_misses: past the cache, to the output of a gather */
    uint64_t reserved[2];
} berth_rows_stats;

/*
 * Copies the statistics as they are now.
 * Errors: BERTH_E_ARGUMENT: NULL.
 * Threads: any.
 */
BERTH_API int berth_rows_get_stats(berth_rows *rows, berth_rows_stats *stats, berth_error *error);

/* ===================================================================== */
/*  Devices                                                              */
/* ===================================================================== */

/*
 * Memory that does not belong to the host: a GPU's, through CUDA's driver. Berth opens the driver
 * when a device is first used. A program needs nothing of CUDA to build, or to run without a GPU.
 * "cuda:0" is the driver's first device, in its primary context, which PyTorch and CUDA's runtime
 * use too. A calling thread keeps the context that it has. Graph captures of any thread are not
 * disturbed (since CUDA 10.1). Addresses on devices are numbers: what CUdeviceptr and a tensor's
 * data_ptr() are. The `berth` command also has "simulated:0" and "simulated:1", for tests and for
 * machines without a GPU; this library does not.
 *
 * If the context of a device dies (cudaDeviceReset, or a kernel that failed), running operations
 * fail. The next operation that uses the device opens it again. Memory from before is lost: saving
 * it, or asking for a tensor that a checkpoint had there, returns BERTH_E_DEVICE. berth_close does
 * not touch it. If only a new process helps, the message says so.
 *
 * Bytes pass between a device and a file through staging buffers (device.staging_nbytes,
 * device.staging_buffers). The first operation pins them, later ones use them again. They count for
 * io.memory_nbytes, which must leave 2 MiB for one buffer. If some of them cannot be pinned there
 * are fewer; if none can, the operation returns BERTH_E_MEMORY with the number of bytes.
 *
 * Berth does not use GPUDirect Storage. Files with save.storage_alignment=4096 suit it: each
 * storage begins at a multiple of 4096, and no other storage lies before the next multiple behind
 * its end.
 *
 * Errors: BERTH_E_DEVICE: there is no driver or no such device, or it failed. The message names the
 * device and ends in the driver's name for the error. BERTH_E_UNAVAILABLE: the library was built
 * without CUDA.
 */

/* ---- saving from devices ---- */

/*
 * Makes a storage from memory of a device, as berth_storage_new does from memory of the host.
 *
 *     berth_storage *storage =
 *         berth_device_storage_new(tree, BERTH_FLOAT32, address, nbytes, "cuda:0", event);
 *     berth_dict_set(state, "weight",
 *                    berth_make_tensor(tree, &(berth_tensor){.dtype = BERTH_FLOAT32, .rank = 1,
 *                                                             .shape = &n, .storage = storage}));
 *
 * One file may have storages of several devices and of the host. It differs from a file of host
 * storages only in the locations that it records. Saves read the bytes by asynchronous copies on
 * streams of their own, and check again that they are the device's.
 * Parameters: address, nbytes: the bytes. location: the device, "cuda:0"; "cuda" is the first one,
 * and is saved as "cuda:0". ready: an event (CUevent, cudaEvent_t) of that device, recorded after
 * the kernels that write the bytes, and in no capture of a graph: the device waits for it before it
 * copies. NULL: the bytes are ready.
 * Lifetime: the bytes stay the caller's. They must live, unchanged, as long as the tree; for a job,
 * until it is staged: from then on they may be overwritten or freed. The event must live as long.
 * Returns: the storage; NULL on failure, and berth_tree_error tells why.
 * Errors: BERTH_E_DEVICE: the device cannot be opened. BERTH_E_ARGUMENT: the first or the last byte
 * is not its memory.
 */
BERTH_API berth_storage *berth_device_storage_new(berth_tree *tree, berth_dtype dtype,
                                                  uintptr_t address, uint64_t nbytes,
                                                  const char *location, void *ready);

/* ---- memory of devices ---- */

/*
 * Allocates memory of a device, for programs that have no allocator of their own.
 * Parameters: device: "cuda:0", ... nbytes: 0 gives address 0.
 * Lifetime: *address is the caller's until berth_device_memory_free. If the device's context dies,
 * the memory is gone, and must not be freed.
 * Returns: *address, which is aligned to at least 256 bytes. The content is undefined.
 * Errors: BERTH_E_MEMORY: the device has no room.
 * Threads: any.
 */
BERTH_API BERTH_MUST_CHECK int berth_device_memory_new(const char *device, size_t nbytes,
                                                       uintptr_t *address, berth_error *error);

/*
 * Frees memory of a device.
 * Parameters: address: as berth_device_memory_new returned it; 0: does nothing.
 * Threads: any.
 */
BERTH_API void berth_device_memory_free(const char *device, uintptr_t address);

typedef enum berth_copy_direction {
    BERTH_TO_DEVICE = 1,
    BERTH_FROM_DEVICE = 2
} berth_copy_direction;

/*
 * Copies bytes between the host and a device's memory of any allocator. It waits for its own copy,
 * and for no kernel or other copy. Saves and loads are faster: this is one copy through ordinary
 * memory.
 * Parameters: address, bytes: nbytes bytes each. `bytes` is only read if direction is
 * BERTH_TO_DEVICE.
 * Errors: BERTH_E_ARGUMENT: the first or the last byte is not that device's memory.
 * Threads: any.
 */
BERTH_API BERTH_MUST_CHECK int berth_device_memory_copy(const char *device, uintptr_t address,
                                                        void *bytes, size_t nbytes,
                                                        berth_copy_direction direction,
                                                        berth_error *error);

/* ---- loading to devices ---- */

/*
 * All storages go to the host, wherever they were when they were saved, unless
 * berth_set_storage_rules sends them elsewhere. A rule with `.device = BERTH_DEVICE_SAVED` is
 * PyTorch's default; `.location = "cuda*", .device = "cuda:0"` is its map_location={'cuda:1':
 * 'cuda:0', ...}.
 *
 * berth_load reads such storages into pinned staging buffers, compares their CRCs
 * (load.check=data), swaps bytes, and lets the device copy them while it reads on. Reads go past
 * the page cache where that is best, or as the method says. When it returns, all copies are
 * complete: any stream may use the bytes. A failed load leaves nothing of its own on devices, but
 * may have written to memory of the caller.
 *
 * An event `ready` (CUevent, cudaEvent_t) is recorded behind the last kernel or copy that reads or
 * writes the caller's memory, and not in the capture of a graph. The device waits for it before it
 * copies; the host does not wait. Several storages may have the same event.
 *
 * With load.check=data set load.mmap=off, too: otherwise berth_open reads the whole file that it
 * could map, to compare its CRCs, before berth_set_storage_rules can send anything to a device.
 */

/*
 * The address of a tensor's first element on its device, in the device's byte order. Its strides
 * apply. Loads the storage if that has not been done. Memory that Berth allocates begins at
 * multiples of 512 bytes; for storages of up to 64 KiB at multiples of 64.
 *
 * Saves of the checkpoint's values and berth_tensor_read see what a program writes there. Such
 * saves copy through ordinary memory; a storage that is made by berth_device_storage_new over the
 * address is saved faster.
 * Parameters: address: receives the address; 0 if the tensor is empty.
 * Lifetime: the memory is there until berth_close, or it is the caller's.
 * Errors: BERTH_E_ARGUMENT: the tensor's device is the host. Otherwise as for berth_load.
 * Threads: any.
 */
BERTH_API BERTH_MUST_CHECK int berth_tensor_device_address(berth_checkpoint *checkpoint,
                                                           const berth_tensor *tensor,
                                                           uintptr_t *address, berth_error *error);

#ifdef __cplusplus
}
#endif

#endif /* BERTH_H */
