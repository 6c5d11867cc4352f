/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A tree -> Python values, with the identity that torch.load gives them. Nothing recurses: a file
 * can be nested as deep as it likes. Frames stand for the containers that are being filled.
 */
#include "adapters/python/native/native.h"

typedef struct bpy_frame {
    const berth_value *value;
    PyObject *made;      /* the container; of tuples, a list of the items */
    PyObject *key;       /* of a dict: the key whose item comes next */
    size_t i;            /* of the next item */
    bool wants_state;    /* the next child is the state */
    bpy_key_table *keys; /* what they cost; NULL: it has not many */
} bpy_frame;

/* ---- scalars ---- */

static PyObject *load_int(const berth_value *value)
{
    int64_t number;
    if (berth_as_int(value, &number))
        return PyLong_FromLongLong(number);
    size_t nbytes;
    const uint8_t *bytes = berth_as_bytes(value, &nbytes);
    PyObject *from_bytes = PyObject_GetAttrString((PyObject *)&PyLong_Type, "from_bytes");
    PyObject *arguments = Py_BuildValue("(y#s)", (const char *)bytes, (Py_ssize_t)nbytes, "little");
    PyObject *keywords = Py_BuildValue("{sO}", "signed", Py_True);
    PyObject *made =
        from_bytes && arguments && keywords ? PyObject_Call(from_bytes, arguments, keywords) : NULL;
    Py_XDECREF(from_bytes);
    Py_XDECREF(arguments);
    Py_XDECREF(keywords);
    return made;
}

static PyObject *load_complex(const berth_value *value)
{
    double real, imaginary;
    berth_as_complex(value, &real, &imaginary);
    return PyComplex_FromDoubles(real, imaginary);
}

static PyObject *load_str(const berth_value *value)
{
    size_t nbytes;
    const char *text = berth_as_text(value, &nbytes);
    return PyUnicode_DecodeUTF8(text, (Py_ssize_t)nbytes, "surrogatepass");
}

static PyObject *load_size(const bpy_loader *loader, const berth_value *value)
{
    int32_t rank;
    const int64_t *shape = berth_as_size(value, &rank);
    PyObject *items = PyTuple_New(rank);
    for (int32_t i = 0; items && i < rank; i++) {
        PyObject *item = PyLong_FromLongLong(shape[i]);
        if (!item || PyTuple_SetItem(items, i, item) < 0)
            Py_CLEAR(items);
    }
    PyObject *made = items ? PyObject_CallFunctionObjArgs(loader->torch->Size, items, NULL) : NULL;
    Py_XDECREF(items);
    return made;
}

static PyObject *load_constant(const bpy_loader *loader, const berth_value *value, berth_kind kind)
{
    int number = 0;
    berth_as_constant(value, kind, &number);
    PyObject *made = kind == BERTH_KIND_DTYPE    ? loader->torch->dtypes[number]
                     : kind == BERTH_KIND_LAYOUT ? loader->torch->layouts[number]
                                                 : loader->torch->qschemes[number];
    if (!made)
        PyErr_Format(PyExc_RuntimeError, "this PyTorch does not have a %s of the file",
                     berth_kind_name(kind));
    Py_XINCREF(made);
    return made;
}

/*
 * A class or function by its name, as a value: one that torch.load allows; nothing is imported.
 * pickle writes Python 2's name of builtins.
 */
static PyObject *load_global(const bpy_loader *loader, const berth_value *value)
{
    static const char OLD[] = "__builtin__ ";
    const char *text = berth_as_text(value, NULL);
    bool is_old = strncmp(text, OLD, sizeof OLD - 1) == 0;
    PyObject *allowed = PyObject_CallNoArgs(loader->torch->allowed_globals);
    PyObject *words = allowed ? PyUnicode_FromFormat("%s%s", is_old ? "builtins " : "",
                                                     is_old ? text + sizeof OLD - 1 : text)
                              : NULL;
    PyObject *name = words ? PyObject_CallMethod(words, "replace", "ss", " ", ".") : NULL;
    Py_XDECREF(words);
    PyObject *made = allowed && name ? PyDict_GetItemWithError(allowed, name) : NULL;
    if (!made && !PyErr_Occurred())
        PyErr_Format(PyExc_RuntimeError, "the file names %s, which is not loaded", text);
    Py_XINCREF(made);
    Py_XDECREF(allowed);
    Py_XDECREF(name);
    return made;
}

/* A value without an identity. */
static PyObject *load_plain(bpy_loader *loader, const berth_value *value)
{
    bool is_true;
    double number;
    switch (berth_value_kind(value)) {
    case BERTH_KIND_NONE:
        Py_RETURN_NONE;
    case BERTH_KIND_BOOL:
        berth_as_bool(value, &is_true);
        return PyBool_FromLong(is_true);
    case BERTH_KIND_INT:
        return load_int(value);
    case BERTH_KIND_FLOAT:
        berth_as_float(value, &number);
        return PyFloat_FromDouble(number);
    case BERTH_KIND_GLOBAL:
        return load_global(loader, value);
    case BERTH_KIND_STORAGE:
        return bpy_load_storage(loader, value);
    default:
        return load_constant(loader, value, berth_value_kind(value));
    }
}

/* A value with an identity, but without items. */
static PyObject *load_leaf(bpy_loader *loader, const berth_value *value)
{
    size_t nbytes;
    const char *bytes;
    switch (berth_value_kind(value)) {
    case BERTH_KIND_STR:
        return load_str(value);
    case BERTH_KIND_COMPLEX:
        return load_complex(value);
    case BERTH_KIND_BYTES:
        bytes = (const char *)berth_as_bytes(value, &nbytes);
        return PyBytes_FromStringAndSize(bytes, (Py_ssize_t)nbytes);
    case BERTH_KIND_BYTEARRAY:
        bytes = (const char *)berth_as_bytes(value, &nbytes);
        return PyByteArray_FromStringAndSize(bytes, (Py_ssize_t)nbytes);
    case BERTH_KIND_SIZE:
        return load_size(loader, value);
    case BERTH_KIND_DEVICE:
        return PyObject_CallFunction(loader->torch->device, "s", berth_as_text(value, NULL));
    default:
        PyErr_Format(PyExc_RuntimeError, "a value of kind %s cannot become a Python object",
                     berth_kind_name(berth_value_kind(value)));
        return NULL;
    }
}

/* ---- frames ---- */

static bool is_dict(berth_kind kind)
{
    return kind == BERTH_KIND_DICT || kind == BERTH_KIND_ORDERED_DICT || kind == BERTH_KIND_COUNTER;
}

/* Keeps the object of a value for its next use. Returns: 0; -1: an exception is raised. */
static int remember(bpy_loader *loader, const berth_value *value, PyObject *object)
{
    if (bpy_map_set(&loader->objects, value, object) < 0)
        return -1;
    Py_INCREF(object);
    return 0;
}

static PyObject *new_container(const bpy_loader *loader, berth_kind kind)
{
    switch (kind) {
    case BERTH_KIND_DICT:
        return PyDict_New();
    case BERTH_KIND_ORDERED_DICT:
        return PyObject_CallNoArgs(loader->torch->OrderedDict);
    case BERTH_KIND_COUNTER:
        return PyObject_CallNoArgs(loader->torch->Counter);
    case BERTH_KIND_SET:
        return PySet_New(NULL);
    default: /* of tuples: their items, until all are there; in a trial, of objects: their parts */
        return PyList_New(0);
    }
}

/* What only PyTorch and the file's classes make: its parts are looked at, in order (Y1). */
static const berth_value *next_part(bpy_frame *frame)
{
    const berth_value *value = frame->value, *part = NULL;
    const berth_tensor *tensor =
        berth_value_kind(value) == BERTH_KIND_TENSOR ? berth_as_tensor(value) : NULL;
    size_t n = berth_value_count(value);
    while (!part && frame->i < n + BERTH_PART_TYPE + 3) {
        size_t i = frame->i++;
        if (i < n)
            part = berth_value_at(value, i);
        else if (i <= n + BERTH_PART_TYPE)
            part = berth_value_part(value, (berth_part)(i - n));
        else if (tensor)
            part = i == n + BERTH_PART_TYPE + 1 ? tensor->scales : tensor->zero_points;
    }
    return part;
}

/* Whether it is such an object, of which a trial makes a stand-in. */
static bool is_tried(const bpy_loader *loader, berth_kind kind)
{
    return loader->is_trial && kind >= BERTH_KIND_STORAGE;
}

static PyObject *stand_in(void)
{
    return PyObject_CallNoArgs((PyObject *)&PyBaseObject_Type);
}

/* Remembers a stand-in. Returns: 0; -1: an exception is raised. */
static int remember_stand_in(bpy_loader *loader, const berth_value *value)
{
    PyObject *object = stand_in();
    int status = object ? remember(loader, value, object) : -1;
    Py_XDECREF(object);
    return status;
}

static int push_frame(bpy_loader *loader, const berth_value *value)
{
    berth_kind kind = berth_value_kind(value);
    if (loader->n_frames == loader->room_for_frames) {
        size_t room = loader->room_for_frames ? 2 * loader->room_for_frames : 64;
        bpy_frame *frames = PyMem_Realloc(loader->frames, room * sizeof *frames);
        if (!frames)
            return PyErr_NoMemory(), -1;
        loader->frames = frames;
        loader->room_for_frames = room;
    }
    bpy_frame frame = {.value = value};
    if (kind == BERTH_KIND_SUBCLASS && !loader->is_trial) {
        frame.made = bpy_load_tensor(loader, berth_value_part(value, BERTH_PART_INNER));
        frame.wants_state = true;
    } else {
        frame.made = new_container(loader, kind);
    }
    if (!frame.made)
        return -1;
    loader->frames[loader->n_frames++] = frame;
    if (is_tried(loader, kind))
        return remember_stand_in(loader, value);
    /* What can hold itself is known before its items are. */
    return kind == BERTH_KIND_TUPLE ? 0 : remember(loader, value, frame.made);
}

static void pop_frame(bpy_loader *loader)
{
    bpy_frame *frame = &loader->frames[--loader->n_frames];
    Py_XDECREF(frame->made);
    Py_XDECREF(frame->key);
    bpy_key_table_free(frame->keys);
}

/* The next child of the frame; NULL: there is none. The state of a dict comes after its items. */
static const berth_value *next_child(const bpy_loader *loader, bpy_frame *frame)
{
    berth_kind kind = berth_value_kind(frame->value);
    berth_value *key, *item;
    if (is_tried(loader, kind))
        return next_part(frame);
    if (frame->wants_state && (is_dict(kind) || frame->i++ > 0))
        return NULL;
    if (!is_dict(kind) && !frame->wants_state)
        return berth_value_at(frame->value, frame->i++);
    if (frame->key && berth_dict_at(frame->value, frame->i++, &key, &item))
        return item;
    if (!frame->wants_state && berth_dict_at(frame->value, frame->i, &key, &item))
        return key;
    frame->wants_state = true;
    return berth_value_part(frame->value, BERTH_PART_STATE);
}

/* ---- filling ---- */

/* object.__dict__.update(state) */
static int update_attributes(PyObject *object, PyObject *state)
{
    PyObject *attributes = PyObject_GetAttr(object, bpy_name.dict);
    int status = attributes ? PyDict_Update(attributes, state) : -1;
    Py_XDECREF(attributes);
    return status;
}

static int accept_state(bpy_loader *loader, bpy_frame *frame, PyObject *state)
{
    if (is_dict(berth_value_kind(frame->value)))
        return update_attributes(frame->made, state);
    PyObject *done =
        PyObject_CallFunctionObjArgs(loader->torch->set_state, frame->made, state, NULL);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

static int accept_pair(bpy_frame *frame, PyObject *item)
{
    int status = berth_value_kind(frame->value) == BERTH_KIND_DICT
                     ? PyDict_SetItem(frame->made, frame->key, item)
                     : PyObject_SetItem(frame->made, frame->key, item);
    Py_CLEAR(frame->key);
    return status;
}

/* Puts a child into the frame's container. */
static int accept(bpy_loader *loader, bpy_frame *frame, const berth_value *child, PyObject *object)
{
    berth_kind kind = berth_value_kind(frame->value);
    if (frame->wants_state)
        return accept_state(loader, frame, object);
    if (kind == BERTH_KIND_SET)
        return bpy_check_key(loader, &frame->keys, frame->value, child, object) < 0
                   ? -1
                   : PySet_Add(frame->made, object);
    if (!is_dict(kind))
        return PyList_Append(frame->made, object);
    if (frame->key)
        return accept_pair(frame, object);
    if (bpy_check_key(loader, &frame->keys, frame->value, child, object) < 0)
        return -1;
    Py_INCREF(object);
    frame->key = object;
    return 0;
}

/* ---- the loop ---- */

/*
 * The object of a value that needs no frame: a new reference. NULL without an exception: it needs
 * one, and has it now.
 */
static PyObject *begin(bpy_loader *loader, const berth_value *value)
{
    berth_kind kind = berth_value_kind(value);
    if (is_tried(loader, kind) && (kind == BERTH_KIND_STORAGE || kind == BERTH_KIND_GLOBAL))
        return stand_in();
    if (kind <= BERTH_KIND_FLOAT || (kind >= BERTH_KIND_DTYPE && kind <= BERTH_KIND_STORAGE) ||
        kind == BERTH_KIND_GLOBAL)
        return load_plain(loader, value);
    if (kind >= BERTH_KIND_TENSOR && kind <= BERTH_KIND_PARAMETER && !loader->is_trial)
        return bpy_load_tensor(loader, value);
    PyObject *object = bpy_map_get(&loader->objects, value);
    if (object) {
        Py_INCREF(object);
        return object;
    }
    if ((kind >= BERTH_KIND_LIST && kind <= BERTH_KIND_SET) || kind == BERTH_KIND_SUBCLASS ||
        is_tried(loader, kind)) {
        push_frame(loader, value);
        return NULL;
    }
    object = load_leaf(loader, value);
    if (object && remember(loader, value, object) < 0)
        Py_CLEAR(object);
    return object;
}

/* The object of the last frame, whose children are all there: a new reference. */
static PyObject *end(bpy_loader *loader)
{
    bpy_frame *frame = &loader->frames[loader->n_frames - 1];
    PyObject *object = frame->made;
    if (berth_value_kind(frame->value) == BERTH_KIND_CALL &&
        (bpy_check_frozenset(loader, frame->value) < 0 || bpy_count_key(loader, frame->value) < 0))
        return NULL;
    if (berth_value_kind(frame->value) != BERTH_KIND_TUPLE) {
        if (is_tried(loader, berth_value_kind(frame->value)))
            object = bpy_map_get(&loader->objects, frame->value);
        Py_INCREF(object);
        return object;
    }
    /* It is there already if a list in it holds it. */
    PyObject *known = bpy_map_get(&loader->objects, frame->value);
    if (known) {
        Py_INCREF(known);
        return known;
    }
    object = PyList_AsTuple(object);
    if (object &&
        (remember(loader, frame->value, object) < 0 || bpy_count_key(loader, frame->value) < 0))
        Py_CLEAR(object);
    return object;
}

/* One step: a child of the last frame, or its end. *object receives the root's object at the end.
 */
static int step(bpy_loader *loader, PyObject **root)
{
    bpy_frame *frame = &loader->frames[loader->n_frames - 1];
    const berth_value *child = next_child(loader, frame);
    PyObject *object = child ? begin(loader, child) : end(loader);
    if (!object)
        return PyErr_Occurred() ? -1 : 0;
    if (!child) {
        child = frame->value;
        pop_frame(loader);
        if (loader->n_frames == 0) {
            *root = object;
            return 0;
        }
    }
    int status = accept(loader, &loader->frames[loader->n_frames - 1], child, object);
    Py_DECREF(object);
    return status;
}

static PyObject *run(bpy_loader *loader, const berth_value *value)
{
    PyObject *root = begin(loader, value);
    int status = root || loader->n_frames > 0 ? 0 : -1;
    while (status == 0 && loader->n_frames > 0) {
        status = step(loader, &root);
        if (status == 0)
            status = bpy_walk_check(&loader->walk);
    }
    while (loader->n_frames > 0)
        pop_frame(loader);
    if (status < 0)
        Py_CLEAR(root);
    return root;
}

PyObject *bpy_load_value(bpy_loader *loader, const berth_value *value)
{
    bpy_walk_begin();
    PyObject *object = run(loader, value);
    bpy_walk_end();
    return object;
}
