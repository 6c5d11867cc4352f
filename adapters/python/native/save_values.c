/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Python values -> a tree. Only exact plain types are taken, so that nothing of the program's runs.
 * One object becomes one node, as it has one place in a pickler's memo. Recursion is limited by
 * Python's own limit, as in pickle; the values are the program's, not a file's.
 */
#include "adapters/python/native/native.h"

berth_value *bpy_refuse(bpy_saver *saver, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    if (!saver->why && !PyErr_Occurred())
        saver->why = PyUnicode_FromFormatV(format, arguments);
    va_end(arguments);
    return NULL;
}

int bpy_saver_keep(bpy_saver *saver, PyObject *object)
{
    if (saver->n_owners == saver->room_for_owners) {
        size_t room = saver->room_for_owners ? 2 * saver->room_for_owners : 64;
        PyObject **owners = PyMem_Realloc(saver->owners, room * sizeof *owners);
        if (!owners) {
            Py_DECREF(object);
            PyErr_NoMemory();
            return -1;
        }
        saver->owners = owners;
        saver->room_for_owners = room;
    }
    saver->owners[saver->n_owners++] = object;
    return 0;
}

/*
 * Adds a step of the way to the value that was refused. A step whose repr() fails is left out; ^C
 * in the middle of one (repr() looks for signals) is raised.
 */
static void note_step(bpy_saver *saver, const char *format, PyObject *key, Py_ssize_t i)
{
    if (!saver->why || PyErr_Occurred())
        return;
    PyObject *step = key ? PyUnicode_FromFormat(format, key) : PyUnicode_FromFormat(format, i);
    if ((!step || PyList_Append(saver->steps, step) < 0) && PyErr_ExceptionMatches(PyExc_Exception))
        PyErr_Clear();
    Py_XDECREF(step);
}

/* ---- scalars ---- */

static berth_value *save_none(bpy_saver *saver, PyObject *object)
{
    (void)object;
    return berth_make_none(saver->tree);
}

static berth_value *save_bool(bpy_saver *saver, PyObject *object)
{
    return berth_make_bool(saver->tree, object == Py_True);
}

/* An int beyond 64 bits, by int.to_bytes. */
static berth_value *save_large_int(bpy_saver *saver, PyObject *object)
{
    PyObject *n_bits = PyObject_CallMethod(object, "bit_length", NULL);
    size_t nbytes = n_bits ? PyLong_AsSize_t(n_bits) / 8 + 1 : 0;
    Py_XDECREF(n_bits);
    if (nbytes == 0)
        return NULL;
    if (nbytes > 255)
        return bpy_refuse(saver, "an int of %zu bytes; Berth writes at most 255", nbytes);
    PyObject *to_bytes = PyObject_GetAttrString(object, "to_bytes");
    PyObject *arguments = Py_BuildValue("(ns)", (Py_ssize_t)nbytes, "little");
    PyObject *keywords = Py_BuildValue("{sO}", "signed", Py_True);
    PyObject *bytes =
        to_bytes && arguments && keywords ? PyObject_Call(to_bytes, arguments, keywords) : NULL;
    Py_XDECREF(to_bytes);
    Py_XDECREF(arguments);
    Py_XDECREF(keywords);
    if (!bytes)
        return NULL;
    const uint8_t *data = (const uint8_t *)PyBytes_AsString(bytes);
    berth_value *value = berth_make_bytes(saver->tree, BERTH_KIND_INT, data, nbytes);
    Py_DECREF(bytes);
    return value;
}

static berth_value *save_int(bpy_saver *saver, PyObject *object)
{
    int overflow;
    long long number = PyLong_AsLongLongAndOverflow(object, &overflow);
    return overflow ? save_large_int(saver, object) : berth_make_int(saver->tree, number);
}

static berth_value *save_float(bpy_saver *saver, PyObject *object)
{
    return berth_make_float(saver->tree, PyFloat_AsDouble(object));
}

static berth_value *save_complex(bpy_saver *saver, PyObject *object)
{
    return berth_make_complex(saver->tree, PyComplex_RealAsDouble(object),
                              PyComplex_ImagAsDouble(object));
}

static berth_value *save_str(bpy_saver *saver, PyObject *object)
{
    Py_ssize_t nbytes;
    const char *text = PyUnicode_AsUTF8AndSize(object, &nbytes);
    if (text)
        return berth_make_str(saver->tree, text, (size_t)nbytes);
    PyErr_Clear(); /* it has surrogates */
    PyObject *bytes = PyUnicode_AsEncodedString(object, "utf-8", "surrogatepass");
    if (!bytes)
        return NULL;
    berth_value *value =
        berth_make_str(saver->tree, PyBytes_AsString(bytes), (size_t)PyBytes_Size(bytes));
    Py_DECREF(bytes);
    return value;
}

static berth_value *save_bytes(bpy_saver *saver, PyObject *object)
{
    return berth_make_bytes(saver->tree, BERTH_KIND_BYTES, PyBytes_AsString(object),
                            (size_t)PyBytes_Size(object));
}

static berth_value *save_bytearray(bpy_saver *saver, PyObject *object)
{
    return berth_make_bytes(saver->tree, BERTH_KIND_BYTEARRAY, PyByteArray_AsString(object),
                            (size_t)PyByteArray_Size(object));
}

/* ---- containers ---- */

/* The value of one item of a container. Holds the item: other threads may run meanwhile. */
static berth_value *save_item(bpy_saver *saver, PyObject *item)
{
    Py_INCREF(item);
    berth_value *value = bpy_save_value(saver, item);
    Py_DECREF(item);
    return value;
}

/*
 * Makes room for what n items and their keys may be. A table that grows moves what it has: with the
 * GIL, or without, which costs the walk a turn of other threads.
 */
static void expect_items(bpy_saver *saver, Py_ssize_t n)
{
    bpy_map_reserve(&saver->nodes, 2 * (size_t)n);
    bpy_map_reserve(&saver->storages, (size_t)n);
    bpy_map_reserve(&saver->addresses, (size_t)n);
}

/* A container that may hold itself gets its place before its items. */
static berth_value *save_before_items(bpy_saver *saver, PyObject *object, berth_value *value)
{
    return value && bpy_map_set(&saver->nodes, object, value) == 0 ? value : NULL;
}

static berth_value *save_list(bpy_saver *saver, PyObject *object)
{
    expect_items(saver, PyList_Size(object));
    berth_value *list = save_before_items(saver, object, berth_make_list(saver->tree));
    for (Py_ssize_t i = 0; list && i < PyList_Size(object); i++) {
        berth_value *item = save_item(saver, PyList_GetItem(object, i));
        if (!item || berth_list_append(list, item) < 0) {
            note_step(saver, "[%zd]", NULL, i);
            return NULL;
        }
    }
    return list;
}

static berth_value *save_tuple(bpy_saver *saver, PyObject *object)
{
    Py_ssize_t n = PyTuple_Size(object);
    berth_value **items = PyMem_Calloc((size_t)n + 1, sizeof(berth_value *));
    if (!items)
        return PyErr_NoMemory(), NULL;
    berth_value *tuple = NULL;
    for (Py_ssize_t i = 0; i < n; i++) {
        items[i] = save_item(saver, PyTuple_GetItem(object, i));
        if (!items[i]) {
            note_step(saver, "[%zd]", NULL, i);
            goto out;
        }
    }
    /* It is there already if a list in it holds it. */
    tuple = bpy_map_get(&saver->nodes, object);
    if (!tuple)
        tuple = berth_make_tuple(saver->tree, items, (size_t)n);
out:
    PyMem_Free(items);
    return tuple;
}

/* dict[key] = item */
static int save_pair(bpy_saver *saver, berth_value *dict, PyObject *key, PyObject *item)
{
    Py_INCREF(item);
    berth_value *key_value = save_item(saver, key);
    if (!key_value)
        note_step(saver, ".keys(): %R", key, 0);
    berth_value *value = key_value ? bpy_save_value(saver, item) : NULL;
    if (key_value && !value)
        note_step(saver, "[%R]", key, 0);
    Py_DECREF(item);
    return value ? berth_dict_set_value(dict, key_value, value) : -1;
}

static berth_value *save_pairs_of(bpy_saver *saver, PyObject *object, berth_value *dict)
{
    PyObject *key, *item;
    Py_ssize_t at = 0, n = PyDict_Size(object);
    int status = 0;
    expect_items(saver, n);
    while (dict && status == 0 && PyDict_Next(object, &at, &key, &item)) {
        Py_INCREF(key);
        status = save_pair(saver, dict, key, item);
        Py_DECREF(key);
        if (status == 0 && PyDict_Size(object) != n) {
            PyErr_SetString(PyExc_RuntimeError, "dictionary changed size during iteration");
            status = -1;
        }
    }
    return status == 0 ? dict : NULL;
}

static berth_value *save_dict(bpy_saver *saver, PyObject *object)
{
    return save_pairs_of(
        saver, object,
        save_before_items(saver, object, berth_make_dict(saver->tree, BERTH_KIND_DICT)));
}

static berth_value *save_counter(bpy_saver *saver, PyObject *object)
{
    return save_pairs_of(saver, object, berth_make_dict(saver->tree, BERTH_KIND_COUNTER));
}

/* The pairs of an OrderedDict in its own order, which PyDict_Next does not know. */
static berth_value *save_ordered_pairs(bpy_saver *saver, PyObject *object, berth_value *dict)
{
    PyObject *items = bpy_call(object, saver->torch->ordered_items);
    PyObject *iterator = items ? PyObject_GetIter(items) : NULL;
    PyObject *pair;
    int status = iterator ? 0 : -1;
    expect_items(saver, PyDict_Size(object));
    while (status == 0 && (pair = PyIter_Next(iterator))) {
        status = save_pair(saver, dict, PyTuple_GetItem(pair, 0), PyTuple_GetItem(pair, 1));
        Py_DECREF(pair);
    }
    Py_XDECREF(items);
    Py_XDECREF(iterator);
    return status == 0 && !PyErr_Occurred() ? dict : NULL;
}

static berth_value *save_ordered_dict(bpy_saver *saver, PyObject *object)
{
    berth_value *dict =
        save_before_items(saver, object, berth_make_dict(saver->tree, BERTH_KIND_ORDERED_DICT));
    if (!dict || !save_ordered_pairs(saver, object, dict))
        return NULL;
    PyObject *state = bpy_call(object, saver->torch->ordered_getstate);
    if (!state || bpy_saver_keep(saver, state) < 0)
        return NULL;
    if (state == Py_None)
        return dict;
    berth_value *value = bpy_save_value(saver, state);
    if (!value)
        note_step(saver, ".__dict__", NULL, 0);
    return value && berth_value_set_state(dict, value) == 0 ? dict : NULL;
}

static berth_value *save_set(bpy_saver *saver, PyObject *object)
{
    berth_value *set = berth_make_set(saver->tree);
    PyObject *iterator = PyObject_GetIter(object);
    PyObject *item;
    while (set && iterator && (item = PyIter_Next(iterator))) {
        berth_value *value = bpy_save_value(saver, item);
        if (!value || berth_set_add(set, value) < 0) {
            note_step(saver, ": %R", item, 0);
            set = NULL;
        }
        Py_DECREF(item);
    }
    Py_XDECREF(iterator);
    return iterator && !PyErr_Occurred() ? set : NULL;
}

/* ---- objects of torch ---- */

static berth_value *save_size(bpy_saver *saver, PyObject *object)
{
    int64_t shape[BERTH_MAX_RANK];
    Py_ssize_t rank = PyTuple_Size(object);
    if (rank > BERTH_MAX_RANK)
        return bpy_refuse(saver, "a torch.Size of %zd items", rank);
    for (Py_ssize_t i = 0; i < rank; i++)
        shape[i] = PyLong_AsLongLong(PyTuple_GetItem(object, i));
    return PyErr_Occurred() ? NULL : berth_make_size(saver->tree, shape, (int32_t)rank);
}

static berth_value *save_device(bpy_saver *saver, PyObject *object)
{
    berth_value *value = NULL;
    PyObject *type = PyObject_GetAttr(object, bpy_name.type);
    PyObject *index = type ? PyObject_GetAttr(object, bpy_name.index) : NULL;
    const char *text = type && index ? PyUnicode_AsUTF8AndSize(type, NULL) : NULL;
    long number = text && index != Py_None ? PyLong_AsLong(index) : -1;
    if (text && !PyErr_Occurred())
        value = berth_make_device(saver->tree, text, number);
    Py_XDECREF(type);
    Py_XDECREF(index);
    return value;
}

static berth_value *save_constant(bpy_saver *saver, PyObject *object, berth_kind kind,
                                  PyObject *const *table, int n)
{
    int number = bpy_torch_find(table, n, object);
    if (number == 0)
        return bpy_refuse(saver, "%R, which Berth does not know", object);
    return berth_make_constant(saver->tree, kind, number);
}

static berth_value *save_dtype(bpy_saver *saver, PyObject *object)
{
    return save_constant(saver, object, BERTH_KIND_DTYPE, saver->torch->dtypes, BERTH_DTYPE_COUNT);
}

static berth_value *save_layout(bpy_saver *saver, PyObject *object)
{
    return save_constant(saver, object, BERTH_KIND_LAYOUT, saver->torch->layouts, BERTH_JAGGED + 1);
}

static berth_value *save_qscheme(bpy_saver *saver, PyObject *object)
{
    return save_constant(saver, object, BERTH_KIND_QSCHEME, saver->torch->qschemes,
                         BERTH_PER_CHANNEL_AFFINE_FLOAT_QPARAMS + 1);
}

/* ---- any value ---- */

typedef berth_value *(*save_function)(bpy_saver *saver, PyObject *object);

/* How one type is saved. is_shared: its objects have an identity that a file keeps. */
typedef struct save_row {
    PyTypeObject *type;
    save_function save;
    bool is_shared;
} save_row;

static save_row rows[24];
static size_t n_rows;

static void add_row(PyObject *type, save_function save, bool is_shared)
{
    rows[n_rows++] = (save_row){(PyTypeObject *)type, save, is_shared};
}

/* The most frequent types first. */
static void add_rows(const bpy_torch *torch)
{
    add_row((PyObject *)&PyUnicode_Type, save_str, true);
    add_row(torch->Tensor, bpy_save_tensor, true);
    add_row(torch->Parameter, bpy_save_parameter, true);
    add_row((PyObject *)&PyLong_Type, save_int, false);
    add_row((PyObject *)&PyFloat_Type, save_float, false);
    add_row((PyObject *)&PyDict_Type, save_dict, true);
    add_row((PyObject *)&PyList_Type, save_list, true);
    add_row((PyObject *)&PyTuple_Type, save_tuple, true);
    add_row((PyObject *)&PyBool_Type, save_bool, false);
    add_row((PyObject *)Py_TYPE(Py_None), save_none, false);
    add_row(torch->OrderedDict, save_ordered_dict, true);
    add_row((PyObject *)&PySet_Type, save_set, true);
    add_row((PyObject *)&PyBytes_Type, save_bytes, true);
    add_row((PyObject *)&PyByteArray_Type, save_bytearray, true);
    add_row((PyObject *)&PyComplex_Type, save_complex, true);
    add_row(torch->Counter, save_counter, true);
    add_row(torch->Size, save_size, true);
    add_row(torch->device, save_device, true);
    add_row(torch->dtype, save_dtype, true);
    add_row(torch->layout, save_layout, true);
    add_row(torch->qscheme, save_qscheme, true);
    add_row(torch->UntypedStorage, bpy_save_untyped, true);
    add_row(torch->TypedStorage, bpy_save_typed, true);
}

static const save_row *find_row(const bpy_saver *saver, PyObject *object)
{
    static const save_row elsewhere = {NULL, bpy_save_elsewhere, true};
    if (saver->elsewhere == (PyObject *)Py_TYPE(object))
        return &elsewhere;
    if (n_rows == 0)
        add_rows(saver->torch);
    for (size_t i = 0; i < n_rows; i++)
        if (rows[i].type == Py_TYPE(object))
            return &rows[i];
    return NULL;
}

/* As long as the walk knows an object by its address, no other one may come to lie there. */
static int keep_alive(bpy_saver *saver, PyObject *object)
{
    Py_INCREF(object);
    return bpy_saver_keep(saver, object);
}

berth_value *bpy_save_value(bpy_saver *saver, PyObject *object)
{
    const save_row *row = find_row(saver, object);
    if (!row)
        return bpy_refuse(saver, "%R is not a plain type", (PyObject *)Py_TYPE(object));
    berth_value *value = row->is_shared ? bpy_map_get(&saver->nodes, object) : NULL;
    if (value)
        return value;
    if (bpy_walk_check(&saver->walk) < 0 || (row->is_shared && keep_alive(saver, object) < 0) ||
        Py_EnterRecursiveCall(" while saving a value"))
        return NULL;
    value = row->save(saver, object);
    Py_LeaveRecursiveCall();
    if (value && row->is_shared && bpy_map_set(&saver->nodes, object, value) < 0)
        return NULL;
    return value;
}
