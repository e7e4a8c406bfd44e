/// What the files of the module share: errors, communicators, layouts, arrays, settings.
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

#include "muonrt/muonrt.hpp"

namespace nb = nanobind;

namespace binding {

using muonrt::check;
constexpr muonrt_status_t kInvalidArg = MUONRT_ERROR_INVALID_ARGUMENT;

/// Throws a status with a text of the binding's own.
[[noreturn]] inline void refuse(muonrt_status_t status, const std::string& text) {
  throw muonrt::Error(muonrt_set_last_error(status, text.c_str()));
}
/// Concatenates texts and numbers. Without streams: a compiler that links its libstdc++
/// statically would give the module some that know nothing of the process's locale.
template <class... Pieces>
std::string cat(const Pieces&... pieces) {
  std::string out;
  const auto append = [&](const auto& piece) {
    using Piece = std::decay_t<decltype(piece)>;
    if constexpr (std::is_arithmetic_v<Piece> && !std::is_same_v<Piece, char>) {
      char digits[64];
      out.append(digits, std::to_chars(digits, digits + sizeof digits, piece).ptr);
    } else {
      out += piece;
    }
  };
  (append(pieces), ...);
  return out;
}
/// As Python asks. Errors: what __bool__ raises.
inline bool is_true(nb::handle object) {
  const int truth = PyObject_IsTrue(object.ptr());
  if (truth < 0) nb::raise_python_error();
  return truth == 1;
}
/// "(4, 3)", as Python prints a shape.
std::string shape_text(const std::vector<int64_t>& shape);

/// One user of a handle at a time: a second thread is told, not raced.
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

/// All objects of a class that are there, for the end of the process; under the GIL.
template <class T>
std::set<T*>& alive() {
  static std::set<T*> all;
  return all;
}

/// A communicator. What was made from it shares the handle.
struct Comm {
  std::shared_ptr<muonrt_comm_t> handle;
  std::atomic<bool> busy{false};

  /// @param over  the communicator that `raw` was made over; it lives as long.
  explicit Comm(muonrt_comm_t* raw, std::shared_ptr<muonrt_comm_t> over = nullptr);
  ~Comm() { alive<Comm>().erase(this); }
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;
  void close() {
    Busy mine(busy, "the communicator");
    handle.reset();
  }
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

/// The communicator that `create` makes, without the GIL.
std::unique_ptr<Comm> created(const std::function<muonrt_status_t(muonrt_comm_t**)>& create);

/// Over `host`, for optimizers on a CUDA device; see muonrt/nccl.h.
std::unique_ptr<Comm> staged(Comm& host, int32_t device_index);

/// Over functions in Python; see muonrt/transport.h.
std::unique_ptr<Comm> from_functions(int32_t rank, int32_t size, nb::object exchange,
                                     nb::object allgather, const std::string& name,
                                     bool caller_thread_only, nb::object abort, nb::object close);

/// Runs `call` without the GIL and throws what it returns. On Python's main thread it runs beside:
/// an exception of a signal handler (Ctrl-C) aborts `comm`, which ends the call, and is raised.
muonrt_status_t collective(muonrt_comm_t* comm, const std::function<muonrt_status_t()>& call);

struct Mesh {
  std::vector<int64_t> shape;
  std::vector<std::string> names;
  std::vector<int32_t> ranks;

  /// A mesh dimension by its name or index.
  int32_t dimension(nb::handle name_or_index) const;
  /// One or several of them.
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

/// A layout as the C ABI takes it; points into the Layout and into itself.
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

/// The host, or a CUDA device.
struct Place {
  muonrt_device_t device = MUONRT_DEVICE_HOST;
  int32_t index = 0;

  bool operator==(const Place& other) const {
    return device == other.device && index == other.index;
  }
  bool on_cuda() const { return device == MUONRT_DEVICE_CUDA; }
  std::string text() const { return on_cuda() ? cat("cuda:", index) : "the host"; }
};

/// An array of a framework's, held: row-major, contiguous, f32 or bf16.
struct Array {
  nb::ndarray<nb::ro> held;
  void* data = nullptr;  // NULL where it has no elements
  muonrt_dtype_t dtype = 0;
  std::vector<int64_t> shape;
  Place place;
};

/// @param what      "param 'w': data", for messages.
/// @param dtype     as the caller names it ("bfloat16" for uint16), or "".
/// @param writable  refuse a read-only one.
Array take_array(const std::string& what, nb::handle object, const std::string& dtype,
                 bool writable);

/// Refuses an array that lies elsewhere than `place`. @param whose  what lies there, for messages.
void require_place(const std::string& what, const Array& array, const Place& place,
                   const std::string& whose);

/// A block of a matrix that is orthogonalized by itself.
struct Part {
  std::string name;
  std::optional<std::vector<muonrt_run_t>> rows, cols;
  muonrt_part_t settings;
};

/// What QK-clip knows of a weight.
struct QkClip {
  std::vector<int32_t> select;
  muonrt_qk_clip_t settings;
};

/// One parameter, before it belongs to an optimizer.
struct Param {
  std::string name;
  std::vector<Part> parts;
  std::optional<QkClip> qk_clip;
  Array data, master;
  std::optional<Array> grad;
  std::vector<int64_t> shape;
  std::optional<Layout> layout, grad_layout;
  muonrt_param_t settings;
};

/// What the C struct of a parameter points to during the creation.
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
  std::vector<int32_t> restarts;
  muonrt_group_t settings;

  /// Lets the C struct point into this copy.
  void point_inside() {
    settings.name = name.empty() ? nullptr : name.c_str();
    settings.custom = custom.empty() ? nullptr : custom.data();
    settings.restarts = restarts.empty() ? nullptr : restarts.data();
    settings.n_restarts = static_cast<int32_t>(restarts.size());
  }
};

/// Where an optimizer is: where `settings` say, else where the arrays are. Puts it into the
/// options, and refuses arrays that lie elsewhere.
Place place_of(const std::vector<Param*>& params, muonrt_optimizer_options_t& options,
               const nb::kwargs& settings);

/// What a step did: muonrt_step_report_t, by its names.
struct Report {
  muonrt_step_report_t c;
};

nb::dict counters(const muonrt_optimizer_t* optimizer);
nb::dict health(const muonrt_optimizer_t* optimizer, const std::vector<std::string>& names);

/// settings <- kwargs by the names of the C fields; choices are words in lower case.
void set_group(Group& group, const nb::kwargs& kwargs);
void set_options(muonrt_optimizer_options_t& options, const nb::kwargs& kwargs);
/// Those keyword arguments as the end of a signature in the module's stub.
std::string group_signature();
std::string option_signature();
/// "muon", "stack", "float32", ... as the C value.
int32_t role_of(const std::string& word);
int32_t view_of(const std::string& word);
int32_t master_of(const std::string& word);
int32_t state_of(const std::string& word);
int32_t dtype_of(const std::string& word);
int32_t qk_clip_of(const std::string& word);
/// 0 for "": as the group says.
int32_t normuon_of(const std::string& word);
/// The word of a state's value.
std::string state_word(muonrt_state_kind_t kind);

void bind_comm(nb::module_& module);
void bind_layout(nb::module_& module);
void bind_param(nb::module_& module);
void bind_parts(nb::module_& module);
void bind_settings(nb::module_& module);
void bind_report(nb::module_& module);
void bind_optimizer(nb::module_& module);
/// Closes what no other thread uses: peers may have yet to hear from this rank.
void close_optimizers();
void close_comms();

}  // namespace binding

#endif  // MUONRT_PYTHON_BINDING_HPP
