/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * berth.h - save and load PyTorch checkpoints from C.
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
 * This header is what most programs need. Others add
 *     berth/config.h      options: values, patches, scopes; what load.check and load.method mean
 *     berth/more.h        rare values, walks, hooks, statistics, other targets and sources, plans,
 *                         records, rules for single storages, temporaries
 *     berth/joint.h       many writers, one file
 *     berth/rows.h        rows of tables that are larger than memory
 *     berth/prefetch.h    loads ahead of their use
 *     berth/device.h      memory of GPUs
 *
 * A comment says what a function does. Then come, where they matter and in this order, Parameters,
 * Shapes, Lifetime (who owns what), Returns, Errors, Threads (without it: one thread at a time per
 * handle) and Source (where a rule comes from, if it is not Berth's own).
 * - A function that can fail returns 0 or a negative `berth_status`, or a pointer: NULL on failure.
 *   It clears the `berth_error`, and fills it on failure, if its address is not NULL.
 * - Sizes are in bytes and end in `_nbytes`. Positions in a file are in bytes from its start and
 *   end in `offset`. Shapes, strides and storage offsets are in elements, as in PyTorch.
 * - Text is UTF-8. Text that Berth returns ends with NUL; it may hold more NULs where its length is
 *   returned too.
 * - A member of a struct may be left 0 unless its comment says otherwise.
 * - Functions that free or close something take NULL, too, and do nothing then.
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

#define BERTH_VERSION_MAJOR 0
#define BERTH_VERSION_MINOR 2
#define BERTH_VERSION_PATCH 0
#define BERTH_VERSION_STRING "0.2.0"

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

/* ---- tensors and values ---- */

/*
 * The type of an element. QUINT4X2 holds two elements in an item, QUINT2X4 four, all others one.
 * Source: torch.dtype of PyTorch 2.13. BCOMPLEX32, two bfloat16, is of 2.14. PyTorch loads INT1 to
 * UINT7, but cannot save them. Only safetensors files have FLOAT6: four in an item of 3 bytes.
 */
/* clang-format off */
typedef enum berth_dtype {
    BERTH_DTYPE_NONE = 0, /* a storage without a type: it counts bytes */
    BERTH_FLOAT32 = 1, BERTH_FLOAT64 = 2, BERTH_FLOAT16 = 3, BERTH_BFLOAT16 = 4,
    BERTH_INT8 = 5, BERTH_INT16 = 6, BERTH_INT32 = 7, BERTH_INT64 = 8, BERTH_UINT8 = 9,
    BERTH_BOOL = 10, BERTH_COMPLEX64 = 11, BERTH_COMPLEX128 = 12,
    BERTH_QINT8 = 13, BERTH_QUINT8 = 14, BERTH_QINT32 = 15, BERTH_QUINT4X2 = 16, BERTH_QUINT2X4 = 17,
    BERTH_COMPLEX32 = 18, BERTH_UINT16 = 19, BERTH_UINT32 = 20, BERTH_UINT64 = 21,
    BERTH_FLOAT8_E5M2 = 22, BERTH_FLOAT8_E4M3FN = 23, BERTH_FLOAT8_E5M2FNUZ = 24,
    BERTH_FLOAT8_E4M3FNUZ = 25, BERTH_FLOAT8_E8M0FNU = 26, BERTH_FLOAT4_E2M1FN_X2 = 27,
    BERTH_BITS8 = 28, BERTH_BITS16 = 29, BERTH_BITS1X8 = 30, BERTH_BITS2X4 = 31, BERTH_BITS4X2 = 32,
    BERTH_INT1 = 33, BERTH_INT2 = 34, BERTH_INT3 = 35, BERTH_INT4 = 36, BERTH_INT5 = 37,
    BERTH_INT6 = 38, BERTH_INT7 = 39, BERTH_UINT1 = 40, BERTH_UINT2 = 41, BERTH_UINT3 = 42,
    BERTH_UINT4 = 43, BERTH_UINT5 = 44, BERTH_UINT6 = 45, BERTH_UINT7 = 46, BERTH_BCOMPLEX32 = 47,
    BERTH_FLOAT6_E2M3FN_X4 = 48, BERTH_FLOAT6_E3M2FN_X4 = 49,
    BERTH_DTYPE_COUNT = 50 /* of this header; a newer library may know more */
} berth_dtype;

/* How a quantized tensor maps integers to numbers. Source: torch.qscheme. */
typedef enum berth_qscheme {
    BERTH_NOT_QUANTIZED = 0, BERTH_PER_TENSOR_AFFINE = 1, BERTH_PER_TENSOR_SYMMETRIC = 2,
    BERTH_PER_CHANNEL_AFFINE = 3, BERTH_PER_CHANNEL_SYMMETRIC = 4,
    BERTH_PER_CHANNEL_AFFINE_FLOAT_QPARAMS = 5
} berth_qscheme;
/* clang-format on */

typedef struct berth_tree berth_tree;             /* owns values and storages */
typedef struct berth_value berth_value;           /* one node of a tree */
typedef struct berth_storage berth_storage;       /* bytes that tensors view */
typedef struct berth_checkpoint berth_checkpoint; /* an opened file, with its values */
typedef struct berth_config berth_config;         /* one complete configuration */
typedef struct berth_params berth_params;         /* how to run one operation; NULL: as usual */

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
    const void *data;       /* when made without a storage: the elements, which live as long as the
                               tree. BERTH_ELSEWHERE: another process has them. NULL when returned:
                               use berth_tensor_data */
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
 * The kind of a value. A checkpoint holds a tree of Python values. Berth keeps their identity: a
 * value that is used in two places is written once and read back as one. Tensors that share a
 * storage in PyTorch share a `berth_storage` here.
 */
/* clang-format off */
typedef enum berth_kind {
    BERTH_KIND_NONE = 0, BERTH_KIND_BOOL = 1, BERTH_KIND_INT = 2, BERTH_KIND_FLOAT = 3,
    BERTH_KIND_COMPLEX = 4, BERTH_KIND_STR = 5, BERTH_KIND_BYTES = 6, BERTH_KIND_BYTEARRAY = 7,
    BERTH_KIND_LIST = 8, BERTH_KIND_TUPLE = 9, BERTH_KIND_DICT = 10,
    BERTH_KIND_ORDERED_DICT = 11, BERTH_KIND_COUNTER = 12, /* of Python's collections */
    BERTH_KIND_SET = 13, BERTH_KIND_SIZE = 14, BERTH_KIND_DEVICE = 15, BERTH_KIND_DTYPE = 16,
    BERTH_KIND_QSCHEME = 17, BERTH_KIND_LAYOUT = 18, BERTH_KIND_STORAGE = 19,
    BERTH_KIND_TENSOR = 20, /* strided, quantized or meta */
    BERTH_KIND_SPARSE = 21, BERTH_KIND_NESTED = 22,
    BERTH_KIND_PARAMETER = 23, /* torch.nn.Parameter around a tensor */
    BERTH_KIND_SUBCLASS = 24,  /* a tensor with Python attributes, or of a class of its own */
    BERTH_KIND_GLOBAL = 25,    /* the name of a class or function, which is never called */
    BERTH_KIND_CALL = 26       /* inert: a call of an unknown class or function, never executed */
} berth_kind;
/* clang-format on */

/* ---- the ten functions that nearly every program calls ---- */

/*
 * Makes an empty tree, which owns the values that are made in it. It copies the text that it is
 * given, but not the bytes of tensors. It remembers its first failure: then berth_make functions
 * return NULL, and take NULL, also as the tree; and a save of its values fails with that error.
 * Lifetime: the caller frees it with berth_tree_free.
 * Returns: the tree; NULL: BERTH_E_MEMORY.
 */
BERTH_API berth_tree *berth_tree_new(berth_error *error);

/* An empty dict. kind: BERTH_KIND_DICT, _COUNTER, _ORDERED_DICT, which a state_dict is; or _SET. */
BERTH_API berth_value *berth_make_dict(berth_tree *tree, berth_kind kind);

/*
 * A tensor.
 * Parameters: tensor: see berth_tensor for what may stay 0.
 * Lifetime: *tensor, its shape and its stride are copied. The elements are not.
 * Errors: BERTH_E_TENSOR: it does not fit its storage, or its quantization is incomplete.
 */
BERTH_API berth_value *berth_make_tensor(berth_tree *tree, const berth_tensor *tensor);

/* dict[key] = value. A key that exists keeps its position. Errors: as for berth_list_append. */
BERTH_API int berth_dict_set(berth_value *dict, const char *key, berth_value *value);

/*
 * Saves a value to a path, as torch.save(value, path) does, atomically: `path` holds the old file
 * or the whole new one, whatever happens. Symbolic links are followed. The new file has the rights
 * of the old one. berth/more.h tells more of rights, of temporaries and of what is refused.
 * Lifetime: the tensors' bytes must not change until this returns. They may be mapped from the file
 * at `path`: their checkpoint keeps the old file. save.replace=in_place refuses them.
 * Returns: 0: the file is as durable as save.durability says (by default it survives a power cut),
 * or as the file system can make it: berth_stats.durability.
 * Errors: BERTH_E_NOT_DURABLE: the new file is in place, but may be lost in a power cut.
 * BERTH_E_REPLACE: only save.replace=in_place could write it. After any other error the path keeps
 * its old file, but for save.replace=in_place.
 * Threads: any; several saves may run at once, also of one value.
 */
BERTH_API BERTH_MUST_CHECK int berth_save(const char *path, const berth_value *value,
                                          const berth_params *params, berth_error *error);

/*
 * Opens a checkpoint, as torch.load(path, weights_only=True, mmap=True) does: reads its head,
 * parses the pickle, and checks the file as load.check says (berth/config.h). The bytes of tensors
 * are mapped or read when they are needed. If a mapped file is truncated meanwhile, touching what
 * is lost kills the process (SIGBUS); load.mmap=off reads into memory. Replacing a file by a rename
 * is safe. What is no path, such as memory, berth_open_source opens (berth/more.h).
 * Lifetime: *checkpoint is the caller's until berth_close; NULL on failure.
 * Errors: BERTH_E_NOT_FOUND: there is no file. BERTH_E_SYSTEM: it cannot be read.
 * BERTH_E_NOT_CHECKPOINT, _ARCHIVE, _PICKLE, _FORBIDDEN, _TENSOR, _OFFSETS, _CHECKSUM, _TRUNCATED,
 * _UNSUPPORTED: what is wrong with it.
 * Threads: any. One checkpoint may be used from several threads where a comment says so.
 */
BERTH_API BERTH_MUST_CHECK int berth_open(const char *path, const berth_params *params,
                                          berth_checkpoint **checkpoint, berth_error *error);

/*
 * Finds a tensor or a Parameter by its name or path (see berth_find).
 * Returns: the tensor, which is the checkpoint's; NULL on failure.
 * Errors: BERTH_E_ARGUMENT: the value of that name is no tensor. Otherwise as for berth_find.
 * Threads: any.
 */
BERTH_API const berth_tensor *berth_find_tensor(const berth_checkpoint *checkpoint,
                                                const char *name, berth_error *error);

/*
 * The elements of a tensor that a program knows: finds `name`, and compares dtype and shape.
 * Shapes: shape: `rank` sizes; -1: any size. NULL if rank is 0.
 * Returns: the elements, contiguous and row-major; NULL on failure.
 * Errors: BERTH_E_ARGUMENT: it is no tensor, or a meta tensor, or has another dtype or shape.
 * BERTH_E_UNSUPPORTED: it is not contiguous, or has BERTH_CONJ or BERTH_NEG (berth_tensor_read).
 * Otherwise as for berth_find and berth_tensor_data.
 * Threads: any.
 */
BERTH_API BERTH_MUST_CHECK const void *berth_expect(berth_checkpoint *checkpoint, const char *name,
                                                    berth_dtype dtype, int32_t rank,
                                                    const int64_t *shape, berth_error *error);

/*
 * The address of a tensor's first element. Strides and flags apply. Elements are in this machine's
 * byte order and aligned for the dtype. By default they are mapped copy-on-write: a program may
 * cast const away and write, which changes no file. With load.mmap_flags=shared they are read-only.
 * Returns: the address, valid until berth_close; NULL on failure.
 * Errors: BERTH_E_ARGUMENT: a meta tensor, or it is on a device (berth_set_storage_rules).
 * BERTH_E_TRUNCATED, _CHECKSUM, _MEMORY, _SYSTEM: it cannot be loaded.
 * Threads: any.
 */
BERTH_API const void *berth_tensor_data(berth_checkpoint *checkpoint, const berth_tensor *tensor,
                                        berth_error *error);

/* Closes a checkpoint, which no thread may use any more; frees all that was returned from it. */
BERTH_API void berth_close(berth_checkpoint *checkpoint);

/* ---- names and sizes; threads: any ---- */

/* The version of the library that is linked, "0.2.0". The macros above are this header's. */
BERTH_API const char *berth_version(void);

/* "BERTH_E_MEMORY"; "BERTH_E_UNKNOWN" for a number that is no status. The text is static. */
BERTH_API const char *berth_status_name(int status);

/* PyTorch's name without "torch."; "untyped" for BERTH_DTYPE_NONE and unknown numbers. Static. */
BERTH_API const char *berth_dtype_name(berth_dtype dtype);

/* The size of one item in bytes; 1 for BERTH_DTYPE_NONE. */
BERTH_API size_t berth_dtype_nbytes(berth_dtype dtype);

/* The number of elements; it may wrap around if the caller filled the struct. 0 for NULL. */
static inline int64_t berth_tensor_numel(const berth_tensor *tensor)
{
    uint64_t numel = tensor ? 1 : 0;
    for (int32_t i = 0; tensor && i < tensor->rank; i++)
        numel *= (uint64_t)tensor->shape[i];
    return (int64_t)numel;
}

/* The size of all elements in bytes; a part of an item counts as one. 0 for NULL. */
BERTH_API uint64_t berth_tensor_nbytes(const berth_tensor *tensor);

/* The largest rank of a tensor. Source: PyTorch. */
#define BERTH_MAX_RANK 64

/* Flags of a tensor. */
#define BERTH_REQUIRES_GRAD 1u
#define BERTH_CONJ 2u /* the elements are the complex conjugates of the stored ones */
#define BERTH_NEG 4u  /* the elements are the negatives of the stored ones */
#define BERTH_META 8u /* on the meta device: a shape and a dtype, no storage */

/* ---- making values ---- */

/*
 * Frees a tree with all its values and storages. Jobs of its values must be staged, plans and
 * copies (berth_value_copy) of them gone.
 * Threads: no other thread may use the tree any more.
 */
BERTH_API void berth_tree_free(berth_tree *tree);

/* The first failure of a tree; 0: there was none. *error, if it is not NULL, receives a copy. */
BERTH_API int berth_tree_error(const berth_tree *tree, berth_error *error);

/*
 * Each berth_make function makes one value. All that it is made of is of the same tree.
 * Lifetime: the tree owns it. Text, numbers and shapes are copied.
 * Returns: the value; NULL on failure: see berth_tree_new.
 * Errors: BERTH_E_MEMORY. BERTH_E_ARGUMENT: an argument is out of range, or of another tree. The
 * tree remembers them.
 * Threads: one at a time for one tree; different trees do not disturb each other.
 */
BERTH_API berth_value *berth_make_int(berth_tree *tree, int64_t value);
BERTH_API berth_value *berth_make_float(berth_tree *tree, double value);

/*
 * A str of nbytes bytes of UTF-8. It may hold NULs, and surrogates as Python's surrogatepass
 * encodes them.
 * Errors: BERTH_E_ARGUMENT: it is not UTF-8; the message names the byte.
 */
BERTH_API berth_value *berth_make_str(berth_tree *tree, const char *text, size_t nbytes);

/* An empty list. */
BERTH_API berth_value *berth_make_list(berth_tree *tree);

/* A torch.nn.Parameter around a tensor or a sparse one. */
BERTH_API berth_value *berth_make_parameter(berth_tree *tree, berth_value *tensor,
                                            bool requires_grad);

/*
 * Appends an item to a list.
 * Returns: 0, or a negative status, which the tree remembers too. The message names the index.
 * Errors: BERTH_E_ARGUMENT: the first argument is no container of that kind, or the value is NULL
 * or of another tree. BERTH_E_MEMORY.
 */
BERTH_API int berth_list_append(berth_value *list, berth_value *item);

#define BERTH_COPY_COMPACT 1u /* a flag: cut each storage to the bytes that the tensors use */

/*
 * Makes a value in `tree` that equals `value`. So a checkpoint is edited: open it, copy what stays,
 * set what changes, save:
 *     berth_dict_set(root, "model", berth_value_copy(tree, berth_find(old, "model", &error), 0));
 * Values that are one, or share a storage, do so in the copy, too; but only within one call.
 * Parameters: value: of any tree or checkpoint. flags: 0; or BERTH_COPY_COMPACT: each new storage
 * has only the range from the first to the last byte that a tensor of the copy uses, so that the
 * save of a view writes no more. A storage that is itself a value (BERTH_KIND_STORAGE) stays whole.
 * Lifetime: the bytes are not copied: the tree or checkpoint of `value` must live until the copy is
 * used no more.
 * Returns: the copy; NULL on failure: see berth_tree_error. The time grows with all of its tree.
 * Threads: no other thread may change either tree meanwhile.
 */
BERTH_API berth_value *berth_value_copy(berth_tree *tree, const berth_value *value, uint32_t flags);

/* ---- reading values ---- */

/*
 * These functions read a value of a tree or a checkpoint. NULL reads like a NONE. Functions with
 * *result return true if the value is of their kind; else they return false and set it to 0. The
 * others return NULL if it is of another kind. `nbytes` may be NULL.
 * Lifetime: what they return lives as long as the tree or checkpoint.
 * Threads: any, as long as no thread changes the tree.
 */
BERTH_API berth_kind berth_value_kind(const berth_value *value);

/* An INT that fits; berth_as_bytes reads one that does not. */
BERTH_API bool berth_as_int(const berth_value *value, int64_t *result);

/* A FLOAT. An INT is none: 1 and 1.0 are different in Python, too. */
BERTH_API bool berth_as_float(const berth_value *value, double *result);

/* The text of a STR, "module name" of a GLOBAL, "cuda:1" of a DEVICE; *nbytes without NUL. */
BERTH_API const char *berth_as_text(const berth_value *value, size_t *nbytes);

/* A BYTES or BYTEARRAY; or an INT beyond 64 bits, in two's complement, little-endian. */
BERTH_API const uint8_t *berth_as_bytes(const berth_value *value, size_t *nbytes);

/* A TENSOR, also the one inside a PARAMETER or SUBCLASS. berth_tensor_data has the elements. */
BERTH_API const berth_tensor *berth_as_tensor(const berth_value *value);

/* How many items a container or SIZE has, parts a SPARSE or NESTED, arguments a CALL; else 0. */
BERTH_API size_t berth_value_count(const berth_value *value);

/* Item i of what berth_value_count counts, except dicts. Sets are in the order of the file. */
BERTH_API berth_value *berth_value_at(const berth_value *value, size_t i);

/* Key and item i of a dict, in the order of insertion. False: there is none; both become NULL. */
BERTH_API bool berth_dict_at(const berth_value *dict, size_t i, berth_value **key,
                             berth_value **item);

/* The item of a dict under a key that is a text; NULL: there is none, or the value is no dict. */
BERTH_API berth_value *berth_dict_get(const berth_value *dict, const char *key);

/* ---- the parameters of one operation ---- */

/*
 * Reports from time to time how many bytes are done: of the file, or of the tensors to be loaded.
 * Returns: 0 to go on. Anything else cancels: the operation returns BERTH_E_CANCELLED, and a path
 * that it saves to keeps its old file.
 * Threads: it is called on the thread that called the operation, or on the job's own thread.
 */
typedef int (*berth_progress_function)(void *context, uint64_t done_nbytes, uint64_t total_nbytes);

/*
 * NULL or zeros: the configuration in force, no progress, no statistics. Everything that it points
 * to is the caller's, and must live until the operation returns (jobs: see berth_job).
 */
struct berth_params {
    const berth_config *config; /* berth/config.h; NULL: what is in force on this thread */
    berth_progress_function progress;
    void *progress_context;
    struct berth_stats *stats; /* berth/more.h; filled on success and on failure */
    const char *archive_name; /* saves: the folder inside the archive, at most 510 bytes. NULL: from
                                 the path's name, as PyTorch does; without a path "archive" */
    struct berth_storage_stats *storage_stats; /* saves: of the first n_storage_stats of the file */
    size_t n_storage_stats;
    /* Of berth_joint_write and berth_joint_send (berth/joint.h) alone. */
    int (*exchange)(void *context, const void *send, const uint64_t *send_nbytes, void *receive,
                    const uint64_t *receive_nbytes);
    void *exchange_context;
    const char *base;     /* saves: a file to share blocks with (berth/more.h); NULL: save.base */
    uint64_t reserved[3]; /* 0 */
};

/* ---- saves to elsewhere ---- */

/*
 * A function of the caller that receives a checkpoint. `write` gets bytes for a position in the
 * file. Positions do not overlap, and all of the file is written. Durability is up to the caller.
 * Lifetime: `buffer` is Berth's, and valid until `write` returns.
 * Returns: 0; or an errno value, which fails the save (BERTH_E_CALLBACK; system_errno has it).
 * Threads: `write` is called from several at once; with `in_order` from one at a time: offsets
 * begin at 0 and follow each other, and after a failure no call comes.
 */
typedef struct berth_sink {
    int (*write)(void *context, const void *buffer, size_t nbytes, uint64_t offset);
    void *context;
    bool in_order;
    const struct berth_sink_steps *steps; /* berth/more.h; NULL: write is all that there is */
    uint64_t reserved[3];                 /* 0 */
} berth_sink;

/* What the functions that make targets, contents and sources write into these. */
/* clang-format off */
typedef enum berth_target_kind {
    BERTH_TARGET_PATH = 1, BERTH_TARGET_FD = 2, BERTH_TARGET_MEMORY = 3, BERTH_TARGET_SINK = 4
} berth_target_kind;
typedef enum berth_content_kind {
    BERTH_CONTENT_VALUE = 1, BERTH_CONTENT_RECORDS = 2, BERTH_CONTENT_SAFETENSORS = 3
} berth_content_kind;
typedef enum berth_source_kind {
    BERTH_SOURCE_FUNCTION = 0, BERTH_SOURCE_PATH = 1, BERTH_SOURCE_FD = 2, BERTH_SOURCE_MEMORY = 3
} berth_source_kind;
/* clang-format on */

/* Where a save goes. Made by berth_to_path, berth_to_sink, or (berth/more.h) _to_fd, _to_memory. */
typedef struct berth_target {
    berth_target_kind kind;
    int fd;
    const char *path; /* of others: its name names the archive; NULL: "archive" */
    void **bytes;
    size_t *nbytes;
    const berth_sink *sink;
    uint64_t reserved[4]; /* 0 */
} berth_target;

/* A path, with all that berth_save says of it. The text is the caller's. */
static inline berth_target berth_to_path(const char *path)
{
    const berth_target target = {BERTH_TARGET_PATH, -1, path, NULL, NULL, NULL, {0}};
    return target;
}

/* A function of the caller. *sink must live as long as the target is used. */
static inline berth_target berth_to_sink(const berth_sink *sink)
{
    const berth_target target = {BERTH_TARGET_SINK, -1, NULL, NULL, NULL, sink, {0}};
    return target;
}

/* What a save writes. Made by berth_of_value, or (berth/more.h) _of_safetensors, _of_records. */
typedef struct berth_content {
    berth_content_kind kind;
    uint32_t flags; /* of the records, or of safetensors */
    const berth_value *value;
    const struct berth_new_record *records;
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
 * Saves any content to any target.
 * Lifetime: target, content, params and all that they point to must live, and the bytes of tensors
 * and records must not change, until this returns.
 * Returns, errors, threads: as for berth_save.
 */
BERTH_API BERTH_MUST_CHECK int berth_save_to(const berth_target *target,
                                             const berth_content *content,
                                             const berth_params *params, berth_error *error);

/* ---- saves that go on while the caller does ---- */

/*
 * A save on a thread of its own. Of what the caller gives, these must live
 * - until begin returns: target, path, content, records and their names, sink, params, config
 * - until staged: the bytes of tensors and records, unchanged; the tree or checkpoint of the value,
 *   which may grow meanwhile but is saved as it was at begin
 * - until done: the descriptor of berth_to_fd; *bytes and *nbytes of berth_to_memory; the contexts
 *   of sink and progress; params->stats, params->storage_stats
 * When the process ends, unfinished jobs are lost. Their paths keep the old files, and the next
 * save of such a path removes what is left of them (berth/more.h).
 * Threads: several jobs may run at once, also on one path: each file is whole, and the last job to
 * end wins, even if it began first. Any threads may call a job's functions, except berth_job_free.
 * Sink and progress function may be called before begin returns; they may cancel the job, not wait
 * for it.
 */
typedef struct berth_job berth_job;

typedef enum berth_job_event {
    BERTH_JOB_STAGED = 1, /* nothing of the caller's memory is read any more: tensors may change */
    BERTH_JOB_DONE = 2    /* the save has ended, as when berth_save_to returns */
} berth_job_event;

/*
 * A flag of berth_save_begin: copy the tensors before it returns, so that the job is staged at
 * once. Costs the time of the copy, and as much memory as the file has bytes until the job is done
 * (BERTH_E_MEMORY if io.memory_nbytes leaves too little). Without it a job copies only what it is
 * writing, and is staged when its last byte is written, before it is synced; if all tensors lie on
 * devices, when the last of them is copied.
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
 * Waits until the job is done, and frees it. The job goes on to its end unless it was cancelled
 * (berth_job_cancel of berth/more.h). The log reports a failure that nobody has waited for.
 * Threads: the last call on a job.
 */
BERTH_API void berth_job_free(berth_job *job);

/* ---- finding and reading; threads: any ---- */

/*
 * Finds a value by its name or its path. A name is made of dict keys and list indices with dots
 * between them: "model.0.weight". A path is unambiguous: "['model'][0]['a.b']". The empty name is
 * the root. If a tensor and another value have the same name, the tensor is found.
 * Returns: the value, which is the checkpoint's; NULL on failure.
 * Errors: BERTH_E_NOT_FOUND: the message says what is near. BERTH_E_AMBIGUOUS: the message names
 * both paths, or the step at which two keys look the same (NaNs, very long tuples).
 * Threads: any.
 */
BERTH_API const berth_value *berth_find(const berth_checkpoint *checkpoint, const char *name,
                                        berth_error *error);

/* The value that was saved; it is the checkpoint's. */
static inline const berth_value *berth_root(const berth_checkpoint *checkpoint)
{
    return berth_find(checkpoint, "", NULL);
}

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

/* How many tensors: those of a container that is used twice count once; parts of sparse tensors
 * count, as "name.indices", "name.values", ... */
BERTH_API size_t berth_tensor_count(const berth_checkpoint *checkpoint);

/* Fills *named with tensor i, in the order of the values. BERTH_E_NOT_FOUND: there is none. */
BERTH_API int berth_tensor_at(berth_checkpoint *checkpoint, size_t i, berth_named_tensor *named,
                              berth_error *error);

/*
 * Copies elements [first, first + n) of the row-major order into `buffer`, whatever the strides,
 * from wherever the tensor is. If it is contiguous, only these elements are read; long ranges by
 * io.threads workers. Conjugate and negative bits (BERTH_CONJ, BERTH_NEG) are applied: the copy has
 * the elements that PyTorch shows. To copy the stored ones, clear these flags in a copy of *tensor.
 * Parameters: buffer: room for n items. After an error its content is undefined.
 * Errors: BERTH_E_ARGUMENT: the range is not inside the tensor. BERTH_E_UNSUPPORTED: a part of a
 * tensor with several elements in an item, or one that is not contiguous; or a bit has no meaning
 * for the dtype. Otherwise as for berth_tensor_data.
 * Threads: any.
 */
BERTH_API BERTH_MUST_CHECK int berth_tensor_read(berth_checkpoint *checkpoint,
                                                 const berth_tensor *tensor, int64_t first,
                                                 int64_t n, void *buffer, berth_error *error);

/*
 * Copies a slice of a tensor, in row-major order: elements starts[d] to starts[d] + lengths[d] - 1
 * of each dimension d. Of a storage in a file that is not loaded or mapped, not much more is read
 * than the slice: docs/how-it-works.md tells which gaps.
 * Parameters: buffer: room for the product of lengths times the item's size; NULL if that is 0.
 * Shapes: starts, lengths: one number for each dimension of the tensor.
 * Errors: as for berth_tensor_read.
 * Threads: any.
 */
BERTH_API BERTH_MUST_CHECK int berth_tensor_read_slice(berth_checkpoint *checkpoint,
                                                       const berth_tensor *tensor,
                                                       const int64_t *starts,
                                                       const int64_t *lengths, void *buffer,
                                                       berth_error *error);

/* Tensors whose name fits the pattern (else BERTH_E_NOT_FOUND), and those of the array. */
typedef struct berth_selection {
    const char *pattern; /* glob over the names that `berth ls` shows: * ? [...] as in
                            fnmatch(3); * also matches dots. NULL: none */
    const berth_tensor *const *tensors; /* of this checkpoint */
    size_t n_tensors;
    uint64_t reserved[4]; /* 0 */
} berth_selection;

/*
 * Loads all storages of the selected tensors, so that berth_tensor_data need not wait. io.threads
 * workers read neighbours in the file together. Mapped storages are made present. load.method says
 * how a storage becomes memory (berth/config.h). If a load fails or is cancelled, it has loaded
 * nothing.
 * Parameters: selection: NULL or zeros: everything. params->config: NULL: that with which the
 * checkpoint was opened. params->progress must not ask for data of the same checkpoint.
 * Errors: BERTH_E_MEMORY: before anything is read; the message names the first tensor that does not
 * fit, and the missing bytes. BERTH_E_CHECKSUM. BERTH_E_CANCELLED. Otherwise as for
 * berth_tensor_data.
 * Threads: any. A storage that another thread is loading is waited for.
 */
BERTH_API int berth_load(berth_checkpoint *checkpoint, const berth_selection *selection,
                         const berth_params *params, berth_error *error);

/* ---- verification ---- */

typedef struct berth_record_verdict berth_record_verdict; /* see berth/more.h */
typedef void (*berth_record_function)(void *context, const berth_record_verdict *record);

/* What berth_open_source opens. By berth_from_path, or (berth/more.h) _fd, _memory, _function. */
typedef struct berth_source {
    berth_source_kind kind;
    int fd;           /* of BERTH_SOURCE_FD; of a function: see berth_from_function */
    const char *path; /* of BERTH_SOURCE_PATH; of others: see berth_from_function */
    const void *bytes;
    uint64_t nbytes;  /* size of the whole; for memory and functions */
    const char *name; /* of a function, for messages; NULL: "source" */
    int (*read)(void *context, void *buffer, size_t nbytes, uint64_t offset);
    void *context;
    uint64_t reserved[4]; /* 0 */
} berth_source;

/* A file, with all that berth_open says of it. The text is the caller's, until it is opened. */
static inline berth_source berth_from_path(const char *path)
{
    const berth_source source = {BERTH_SOURCE_PATH, -1, path, NULL, 0, NULL, NULL, NULL, {0}};
    return source;
}

/* What berth_verify found, in numbers. */
typedef struct berth_verdict {
    size_t n_records;
    size_t n_storages;
    size_t n_verified;   /* records whose CRC was computed and matches */
    size_t n_unverified; /* records with bytes but without a CRC */
    size_t n_bad;        /* records with an error */
    uint64_t nbytes;     /* of all records */
    bool is_intact; /* nothing of the file is missing or changed; it can be refused all the same */
    uint64_t behind_nbytes; /* as in berth_info: the objects there are verified as well */
    uint64_t reserved[2];
} berth_verdict;

/*
 * Reads the whole source and checks everything: the archive, the directory against local headers
 * and descriptors, computed offsets, the pickle, the bounds of every tensor, every CRC, the indices
 * of sparse tensors. Checking goes on after a bad record, but ends at one that is not where the
 * directory says.
 *
 * A file whose pickle is refused for what it names or for its protocol, and an archive that is no
 * checkpoint (TorchScript), is checked as well: damage is told first. Without any,
 * verdict.is_intact is true, and the error says why the file is refused.
 * Parameters: report: gets each record (berth/more.h); NULL: no report. verdict: receives counts of
 * what was checked until the first failure; may be NULL.
 * Returns: 0; or the status of the first error: one that keeps the source from being opened, else
 * that of the first bad record in the file's order.
 * Threads: any.
 */
BERTH_API BERTH_MUST_CHECK int berth_verify(const berth_source *source, const berth_params *params,
                                            berth_record_function report, void *context,
                                            berth_verdict *verdict, berth_error *error);

/* ---- rules that hold everywhere ---- */

/*
 * Berth never executes anything from a file. It never aborts, exits or prints, and has no hidden
 * error state. Different handles may be used from different threads at the same time. `reserved`
 * members must be 0: an older library refuses what it does not know (BERTH_E_ARGUMENT).
 *
 * Processes, signals, descriptors:
 * - A forked child may use all of Berth, whatever the threads of its parent were doing. It may also
 *   read through its parent's trees, checkpoints and archives. Jobs, prefetches, row caches and
 *   devices stay with the parent: in the child they return BERTH_E_ARGUMENT (devices:
 *   BERTH_E_DEVICE). The child may free all of them; that changes nothing for the parent. A child
 *   that is forked inside a callback may only exec or exit.
 * - If a thread is cancelled (pthread_cancel) inside a call, the call runs to its end first.
 * - Saves block SIGXFSZ while they write. Berth touches no other signal, never uses the descriptors
 *   0 to 2, even if they are closed, and stays loaded after dlclose.
 *
 * Versions: releases with the same major and minor version can replace each other without a new
 * build (0.2.0, 0.2.1). Before 1.0 a new minor version may change anything; CHANGELOG says what.
 * The symbols carry the minor version (BERTH_0.2): a program that was linked against another one
 * does not start. From 1.0 on, an older program runs with a newer library: structs keep their size,
 * as new members take the place of reserved ones; enums get new values: give each switch a default.
 */

#ifdef __cplusplus
}
#endif

#endif /* BERTH_H */
