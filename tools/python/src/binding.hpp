/// Declarations that all files of the module share: errors, communicators, layouts, arrays and
/// settings.
#ifndef MUONRT_PYTHON_BINDING_HPP
#define MUONRT_PYTHON_BINDING_HPP

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "gil.hpp"
#include "muonrt/muonrt.hpp"
#include "numbers.hpp"

namespace nb = nanobind;

namespace binding {

using muonrt::check;
constexpr muonrt_status_t kInvalidArg = MUONRT_ERROR_INVALID_ARGUMENT;

/// Throws an error of the binding with this status and text.
[[noreturn]] inline void refuse(muonrt_status_t status, const std::string& text) {
  throw muonrt::Error(muonrt_set_last_error(status, text.c_str()));
}
/// Concatenates texts and numbers. Does not use C++ streams, because streams from a statically
/// linked libstdc++ ignore the locale of the process.
template <class... Values>
std::string cat(const Values&... values) {
  std::string out;
  const auto append = [&](const auto& value) {
    using Value = std::decay_t<decltype(value)>;
    if constexpr (std::is_arithmetic_v<Value> && !std::is_same_v<Value, char>) {
      char digits[64];
      out.append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
    } else {
      out += value;
    }
  };
  (append(values), ...);
  return out;
}
/// Returns Python's truth value of `object`. Throws the exceptions that __bool__ raises.
inline bool is_true(nb::handle object) {
  const int truth = PyObject_IsTrue(object.ptr());
  if (truth < 0) nb::raise_python_error();
  return truth == 1;
}
/// Returns a shape as Python prints it, such as "(4, 3)".
std::string shape_text(const std::vector<int64_t>& shape);

/// Marks a handle as in use by this thread. Throws INVALID_STATE if another thread uses it.
class Busy {
 public:
  Busy(std::atomic<bool>& flag, const char* what) : flag_(flag) {
    if (flag_.exchange(true))
      refuse(MUONRT_ERROR_INVALID_STATE, cat(what, " is in use by another thread; wait for it"));
  }
  ~Busy() { flag_ = false; }
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;

 private:
  std::atomic<bool>& flag_;
};

/// Returns the live objects of a class. They must be closed before the process exits. Access this
/// set only while you hold the GIL.
template <class T>
std::set<T*>& alive() {
  static std::set<T*> all;
  return all;
}

/// Appends to `comms` the communicators of all objects of a class that other threads are using.
template <class T>
void list_used_comms(std::vector<std::shared_ptr<muonrt_comm_t>>& comms) {
  for (T* object : alive<T>())
    if (object->in_use()) comms.push_back(object->comm());
}
template <class T>
bool any_in_use() {
  const std::set<T*>& all = alive<T>();
  return std::any_of(all.begin(), all.end(), [](const T* object) { return object->in_use(); });
}

/// Closes the objects of a class that no other thread is using. While an object is closed, the GIL
/// may be released, and other threads may create or destroy objects.
template <class T>
void close_all() {
  const std::set<T*>& all = alive<T>();
  for (T* object : std::vector<T*>(all.begin(), all.end())) {
    if (all.count(object) == 0) continue;
    // The reference keeps the object alive. If Python does not own an object, another thread is
    // using it.
    const nb::object kept = nb::find(*object);
    if (kept.is_valid() && !object->in_use()) object->close();
  }
}

/// A communicator. Objects that were created from a communicator share its handle.
struct Comm {
  std::shared_ptr<muonrt_comm_t> handle;
  std::atomic<bool> busy{false};

  /// @param over  the communicator that `raw` was created over; kept alive until `raw` is freed.
  explicit Comm(muonrt_comm_t* raw, std::shared_ptr<muonrt_comm_t> over = nullptr);
  ~Comm() { alive<Comm>().erase(this); }
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;
  void close() {
    Busy mine(busy, "the communicator");
    handle.reset();
  }
  bool in_use() const { return busy; }
  std::shared_ptr<muonrt_comm_t> comm() const { return handle; }
  muonrt_comm_t* get() const {
    if (!handle) refuse(MUONRT_ERROR_INVALID_STATE, "the communicator is closed");
    return handle.get();
  }
  int32_t rank() const {
    int32_t rank = 0;
    check(muonrt_comm_get_rank(&rank, get()));
    return rank;
  }
  int32_t size() const {
    int32_t size = 0;
    check(muonrt_comm_get_size(&size, get()));
    return size;
  }
};

/// Calls `create` without the GIL and returns its communicator.
std::unique_ptr<Comm> created(const std::function<muonrt_status_t(muonrt_comm_t**)>& create);

/// Creates a communicator that moves GPU memory over `host`; see muonrt_comm_create_staged().
std::unique_ptr<Comm> staged(Comm& host, int32_t device_index);

/// Creates a communicator that calls Python functions; see muonrt/transport.h.
std::unique_ptr<Comm> from_functions(int32_t rank, int32_t size, nb::object exchange,
                                     nb::object allgather, const std::string& name,
                                     bool caller_thread_only, nb::object abort, nb::object close);

/// Runs `call` without the GIL and throws the error that it returns. If the caller is Python's main
/// thread, `call` runs in another thread while the main thread handles signals. If a signal handler
/// raises an exception (Ctrl-C), aborts `comm`, so that `call` returns, and throws this exception.
muonrt_status_t collective(muonrt_comm_t* comm, const std::function<muonrt_status_t()>& call);

struct Mesh {
  std::vector<int64_t> shape;
  std::vector<std::string> names;
  std::vector<int32_t> ranks;

  /// Returns the index of the mesh dimension with this name or index.
  int32_t dimension(nb::handle name_or_index) const;
  /// Returns the indices for one mesh dimension or a sequence of them.
  std::vector<int32_t> dimensions(nb::handle names_or_indices) const;
};

struct Cut {
  std::vector<int32_t> mesh_dims;
  int32_t dim;
  int64_t split_factor, unit;
};

struct Layout {
  Mesh mesh;
  std::vector<muonrt_placement_t> placements;
  std::vector<Cut> cuts;
  std::vector<int32_t> flat_dims, last_dims;
  std::vector<int64_t> values;
  muonrt_reading_t reading = MUONRT_READING_LITERAL;
  muonrt_layout_kind_t kind = MUONRT_LAYOUT_CUTS;
  int32_t last_dim = 0;

  std::vector<int64_t> local_shape(const std::vector<int64_t>& shape, int32_t rank,
                                   std::optional<int32_t> world) const;
  Layout lift(const std::vector<std::vector<int32_t>>& submeshes) const;
  int32_t world_or_mesh(std::optional<int32_t> world) const;
};

/// A C struct of a layout, with pointers into the Layout and into this object.
class LayoutView {
 public:
  explicit LayoutView(const Layout& layout);
  LayoutView(const LayoutView&) = delete;
  LayoutView& operator=(const LayoutView&) = delete;
  const muonrt_layout_t* get() const { return &layout_; }

 private:
  std::vector<const char*> names_;
  std::vector<muonrt_cut_t> cuts_;
  muonrt_mesh_t mesh_;
  muonrt_layout_t layout_;
};

/// The device of an array: the host or a CUDA device.
struct Place {
  muonrt_device_t device = MUONRT_DEVICE_HOST;
  int32_t index = 0;

  bool operator==(const Place& other) const {
    return device == other.device && index == other.index;
  }
  bool on_cuda() const { return device == MUONRT_DEVICE_CUDA; }
  std::string text() const { return on_cuda() ? cat("cuda:", index) : "the host"; }
};

/// An array from another framework, with any shape, strides and dtype. This object keeps it alive.
struct Exported {
  nb::ndarray<nb::ro> array;
  std::string dtype;  // "bfloat16" if the array holds its bits as uint16
};

/// Imports an array through DLPack or the buffer protocol. The arguments have the same meaning as
/// in take_array().
Exported export_array(const std::string& what, nb::handle object, const std::string& dtype,
                      bool writable);

/// An array from another framework that is row-major, contiguous, and f32 or bf16. This object
/// keeps it alive.
struct Array {
  nb::ndarray<nb::ro> held;
  void* data = nullptr;  // NULL if the array has no elements
  muonrt_dtype_t dtype = 0;
  std::vector<int64_t> shape;
  Place place;
};

/// Checks an array from another framework and keeps it alive.
/// @param what      the name of the array in messages, such as "param 'w': data".
/// @param dtype     the dtype that the caller specifies, such as "bfloat16" for uint16 bits, or "".
/// @param writable  whether to reject a read-only array.
Array take_array(const std::string& what, nb::handle object, const std::string& dtype,
                 bool writable);

/// Rejects an array that is not on `place`.
/// @param whose  what is on `place`, for the message.
void require_place(const std::string& what, const Array& array, const Place& place,
                   const std::string& whose);

/// A part of a matrix that is orthogonalized separately.
struct Part {
  std::string name;
  std::optional<std::vector<muonrt_run_t>> rows, cols;
  muonrt_part_t settings;
};

/// The settings of QK-clip for one weight.
struct QkClip {
  std::vector<int32_t> select;
  muonrt_qk_clip_t settings;
};

/// A parameter that an optimizer can be created from.
struct Param {
  std::string name;
  std::vector<Part> parts;
  std::optional<QkClip> qk_clip;
  Array data, master;
  std::optional<Array> grad;
  std::vector<int64_t> shape;
  std::vector<int32_t> owners;
  std::optional<Layout> layout, grad_layout;
  muonrt_param_t settings;
};

/// A parameter's C struct and the storage that it points to.
struct ParamView {
  muonrt_param_t c;
  std::vector<muonrt_part_t> parts;
  muonrt_qk_clip_t qk_clip;
  std::vector<int64_t> local;
  std::optional<LayoutView> layout, grad_layout;
};
void fill(ParamView& view, const Param& param);

struct Group {
  std::string name;
  std::vector<double> custom;
  std::vector<int32_t> gram_restarts;
  muonrt_group_t settings;

  /// Updates the pointers of the C struct, which point into this object. Call this function after
  /// every copy.
  void point_inside() {
    settings.name = name.empty() ? nullptr : name.c_str();
    settings.custom = custom.empty() ? nullptr : custom.data();
    settings.gram_restarts = gram_restarts.empty() ? nullptr : gram_restarts.data();
    settings.n_gram_restarts = static_cast<int32_t>(gram_restarts.size());
  }
};

/// The three option structs of muonrt_optimizer_create(). In Python, the fields of these structs
/// and of muonrt_distributed_config_t are keyword arguments of one function, because no two fields
/// have the same name.
struct Options : muonrt_optimizer_options_t, muonrt_tuning_options_t, muonrt_debug_options_t {
  Options()
      : muonrt_optimizer_options_t(muonrt::options()),
        muonrt_tuning_options_t(muonrt::tuning_options()),
        muonrt_debug_options_t(muonrt::debug_options()) {
    muonrt_distributed_config_init(&caller);
  }
  Options(const Options&) = delete;
  Options& operator=(const Options&) = delete;
  /// Returns the main option struct, with pointers to the other two structs.
  const muonrt_optimizer_options_t* get() {
    tuning = this;
    debug = this;
    return this;
  }

  nb::object assign = nb::none(), gather = nb::none(), redistribute = nb::none();
  std::string machine_text;  // what `machine` points to
  muonrt_distributed_config_t caller;
  bool has_distributed = false;  // whether a keyword has set one of its fields
};

/// Determines the device from `settings` or, if they do not name one, from the arrays. Sets it in
/// the options and returns it. Rejects arrays that are on another device.
Place place_of(const std::vector<Param*>& params, Options& options, const nb::kwargs& settings);

/// The report of a step: muonrt_step_report_t.
struct StepReport {
  muonrt_step_report_t c;
};

nb::dict counters(const muonrt_optimizer_t* optimizer);
nb::dict memory(const muonrt_optimizer_t* optimizer);
nb::dict health(const muonrt_optimizer_t* optimizer, const std::vector<std::string>& names);

/// Sets the fields that `kwargs` names. Each keyword is the name of a C field. The values of enums
/// are words in lower case.
void set_group(Group& group, const nb::kwargs& kwargs);
void set_options(Options& options, const nb::kwargs& kwargs);
/// If the text is the path of a profile (*.json), returns the content of this file, otherwise the
/// text.
std::string machine_text(const std::string& name_or_path);
/// Returns the keyword arguments of groups, as the last part of a Python signature.
std::string group_signature();
/// Returns the keyword arguments of options, as the last part of a Python signature.
std::string option_signature();
/// Each of these functions returns the C value for a word such as "muon", "stack" or "float32".
int32_t role_of(const std::string& word);
int32_t view_of(const std::string& word);
int32_t master_of(const std::string& word);
int32_t state_of(const std::string& word);
int32_t survivor_policy_of(const std::string& word);
int32_t dtype_of(const std::string& word);
int32_t qk_clip_of(const std::string& word);
/// Returns the word for a kind of QK-clip.
std::string qk_clip_word(int32_t kind);
/// Returns the C value for a word. For "", it is MUONRT_NORMUON_OFF. In a part, this value means
/// that the axis of the group applies.
int32_t normuon_of(const std::string& word);
/// Returns the word for a kind of state.
std::string state_word(muonrt_state_kind_t kind);

void bind_comm(nb::module_& module);
void bind_log(nb::module_& module);
/// Binds the communication calls of communicators.
void bind_comm_calls(nb::class_<Comm>& comm);
void bind_layout(nb::module_& module);
void bind_mesh(nb::module_& module);
void bind_param(nb::module_& module);
void bind_parts(nb::module_& module);
void bind_settings(nb::module_& module);
void bind_report(nb::module_& module);
void bind_optimizer(nb::module_& module);
void bind_orthogonalize(nb::module_& module);
void bind_checkpoint_reader(nb::module_& module);
void bind_distributed(nb::module_& module);
/// Sets Python's current error to the exception of muonrt._errors for the status.
void set_python_error(const muonrt::Error& error);
/// Closes all optimizers and communicators, so that their peers receive this rank's last messages
/// before the process exits. First aborts objects that other threads, such as daemon threads, are
/// still using. If the calls in these threads do not return within 5 seconds, leaves the objects
/// open.
void close_everything();

}  // namespace binding

#endif  // MUONRT_PYTHON_BINDING_HPP
