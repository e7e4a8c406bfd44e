#include "muonrt/orthogonalize.h"

#include <algorithm>
#include <cmath>

#include "api/as_status.hpp"
#include "api/handles.hpp"
#include "api/read_settings.hpp"
#include "base/checked.hpp"
#include "optimizer/problem.hpp"
#include "optimizer/settings/fields.hpp"

using namespace muonrt;
using api::as_status;
using api::require_pointer;

namespace {

constexpr const char* kOrthogonalize = "muonrt_orthogonalize";
constexpr const char* kProduct = "muonrt_symmetric_product";

DType read_type(const muonrt_dltensor_t& t, const std::string& who) {
  const auto is = [&](int code, int bits) {
    return t.type_code == code && t.type_bits == bits && t.type_lanes == 1;
  };
  MUONRT_REQUIRE(is(2, 32) || is(4, 16) || is(2, 16), kInvalidArg, who, ": the type has code ",
                 int{t.type_code}, ", ", int{t.type_bits}, " bits, ", int{t.type_lanes},
                 " lanes, but must be 2, 32, 1 (f32), 4, 16, 1 (bf16) or 2, 16, 1 (f16); convert "
                 "the tensor");
  return is(2, 32) ? DType::kF32 : is(4, 16) ? DType::kBF16 : DType::kF16;
}

void check_shape(const TensorView& t, const std::string& who) {
  int64_t elements = 1;
  for (const int64_t size : t.shape)
    MUONRT_REQUIRE(size >= 0, kInvalidArg, who, ": shape is ", t.shape,
                   ", but sizes must not be negative; pass the shape of the tensor");
  for (const int64_t size : t.shape) {
    MUONRT_REQUIRE(size == 0 || elements <= kMaxBytes / 4 / size, kInvalidArg, who, ": shape is ",
                   t.shape, ", which is too large to address; split the tensor");
    elements *= std::max<int64_t>(size, 1);
  }
}

/// Checks the strides, and replaces strides that do not affect the position of any element.
void check_strides(TensorView& t, const std::string& who) {
  const size_t row = t.shape.size() - 2, col = row + 1;
  const std::vector<int64_t> given = t.strides;
  for (size_t i = 0; i < t.shape.size(); ++i) {
    MUONRT_REQUIRE(t.strides[i] >= 0, kInvalidArg, who, ": strides are ", given,
                   ", but must not be negative; copy the tensor");
    if (t.shape[i] == 1) t.strides[i] = 0;
    MUONRT_REQUIRE(t.shape[i] == 0 || t.strides[i] <= kMaxBytes / 64 / t.shape[i], kInvalidArg, who,
                   ": strides are ", given, " for shape ", t.shape,
                   ", which is too large to address; split the tensor");
  }
  if (t.shape[col] == 1) t.strides[col] = 1;
  if (t.shape[row] == 1) t.strides[row] = t.strides[col] == 1 ? t.shape[col] : 1;
  MUONRT_REQUIRE(t.strides[row] == 1 || t.strides[col] == 1, kInvalidArg, who, ": strides are ",
                 given, " for shape ", t.shape,
                 ", but within a matrix the rows or the columns must be contiguous (stride 1); "
                 "copy the tensor");
}

/// @param who  Function and argument, for error messages.
TensorView read_tensor(const muonrt_dltensor_t* given, const std::string& who, Device& device,
                       DeviceKind kind, int index) {
  MUONRT_REQUIRE(given, kInvalidArg, who, " is NULL; pass a tensor");
  const muonrt_dltensor_t& t = *given;
  TensorView out;
  out.dtype = read_type(t, who);
  MUONRT_REQUIRE(t.ndim >= 2 && t.ndim <= MUONRT_MAX_DIMS && t.shape, kInvalidArg, who,
                 ": ndim is ", t.ndim, " with ", t.shape ? "a" : "no",
                 " shape, but must be from 2 to ", MUONRT_MAX_DIMS,
                 " with a shape; pass a matrix or a batch of matrices");
  out.shape.assign(t.shape, t.shape + t.ndim);
  check_shape(out, who);
  const bool cuda = kind == DeviceKind::kCuda;
  const bool reached = cuda ? (t.device_type == 2 && t.device_id == index) || t.device_type == 13
                            : t.device_type == 1 || t.device_type == 3;
  MUONRT_REQUIRE(reached, kInvalidArg, who, ": device_type is ", t.device_type, ", device_id ",
                 t.device_id, ", but the orthogonalizer is on ",
                 cuda ? cat("CUDA device ", index) : std::string("the host"),
                 " (type 1 is the host, 2 CUDA); copy the tensor there");
  if (out.is_empty()) return out;
  if (t.strides) {
    out.strides.assign(t.strides, t.strides + t.ndim);
  } else {
    out.strides.assign(out.shape.size(), 1);
    for (size_t i = out.shape.size() - 1; i-- > 0;)
      out.strides[i] = out.strides[i + 1] * out.shape[i + 1];
  }
  check_strides(out, who);
  require_pointer(t.data, who.c_str(), "data");
  out.data = t.data + t.byte_offset;
  const auto address = reinterpret_cast<uintptr_t>(out.data);
  MUONRT_REQUIRE(address % static_cast<uintptr_t>(size_of(out.dtype)) == 0, kInvalidArg, who,
                 ": the address of its first element is not a multiple of ", size_of(out.dtype),
                 "; pass memory that is aligned to its elements");
  MUONRT_REQUIRE(device.reaches(out.data), kInvalidArg, who,
                 ": the device cannot access its memory; copy the tensor to the device");
  return out;
}

/// Checks that no two elements of an output have the same address. Errors: INVALID_ARGUMENT.
void require_distinct(const TensorView& t, const std::string& who) {
  if (t.is_empty()) return;
  std::vector<std::pair<int64_t, int64_t>> dims;  // pairs (stride, size), ordered by stride
  for (size_t i = 0; i < t.shape.size(); ++i)
    if (t.shape[i] > 1) dims.emplace_back(t.strides[i], t.shape[i]);
  std::sort(dims.begin(), dims.end());
  int64_t reach = 0;  // largest offset in the dimensions so far
  for (const auto& [stride, size] : dims) {
    MUONRT_REQUIRE(stride > reach, kInvalidArg, who, ": its elements overlap (shape ", t.shape,
                   ", strides ", t.strides, "); pass a tensor whose elements are separate");
    reach += stride * (size - 1);
  }
}

FormChoice form_of(const NewtonSchulz& method, const GroupSettings& group) {
  try {
    return permitted_form(method, group.form);
  } catch (const Error& e) {
    throw Error(e.status(), cat("group '", group.name, "': ", e.message()));
  }
}

float read_factor(double value, const char* name) {
  const auto out = static_cast<float>(value);
  MUONRT_REQUIRE(std::isfinite(out), kInvalidArg, kProduct, ": ", name, " is ", value,
                 ", but must be a finite f32 number; pass such a number");
  return out;
}

}  // namespace

extern "C" {

muonrt_status_t muonrt_orthogonalizer_create(muonrt_orthogonalizer_t** orthogonalizer,
                                             const muonrt_optimizer_options_t* options,
                                             const muonrt_group_t* group) {
  return as_status([&] {
    require_pointer(orthogonalizer, "muonrt_orthogonalizer_create", "orthogonalizer");
    *orthogonalizer = nullptr;
    muonrt_group_t defaults;
    muonrt_group_init_muon(&defaults);
    OptimizerSettings settings = api::read_options(options, 1);
    settings.groups.push_back(api::read_group(group ? group : &defaults, "group"));
    GroupSettings& g = settings.groups[0];
    if (g.name.empty()) g.name = "orthogonalizer";
    MUONRT_REQUIRE(g.role == Role::kMuon, kInvalidArg,
                   "group: role is MUONRT_ROLE_ADAMW, which orthogonalizes nothing; initialize the "
                   "group with muonrt_group_init_muon()");
    validate(settings, 0, 1);
    NewtonSchulz method = std::move(make_newton_schulz(settings)[0]);
    const FormChoice form = form_of(method, g);
    auto handle = std::make_unique<muonrt_orthogonalizer>();
    handle->device = settings.device;
    handle->device_index = settings.device_index;
    handle->body =
        std::make_unique<Orthogonalizer>(api::make_device(settings), std::move(method), form);
    *orthogonalizer = api::release_handle(std::move(handle));
    return Status::kOk;
  });
}

void muonrt_orthogonalizer_destroy(muonrt_orthogonalizer_t* orthogonalizer) {
  as_status([&] {
    api::destroy_handle(orthogonalizer, "muonrt_orthogonalizer_destroy", "orthogonalizer");
    return Status::kOk;
  });
}

muonrt_status_t muonrt_orthogonalize(const muonrt_dltensor_t* out, int64_t* nonfinite,
                                     muonrt_orthogonalizer_t* orthogonalizer,
                                     const muonrt_dltensor_t* x, void* stream) {
  return as_status([&] {
    Orthogonalizer& o = api::unwrap(orthogonalizer, kOrthogonalize);
    const auto read = [&](const muonrt_dltensor_t* tensor, const char* name) {
      return read_tensor(tensor, cat(kOrthogonalize, ": ", name), o.device(),
                         orthogonalizer->device, orthogonalizer->device_index);
    };
    const TensorView from = read(x, "x"), to = read(out, "out");
    MUONRT_REQUIRE(to.shape == from.shape, kInvalidArg, kOrthogonalize, ": out has shape ",
                   to.shape, ", but x has ", from.shape, "; pass a tensor of the same shape");
    require_distinct(to, cat(kOrthogonalize, ": out"));
    require_same_or_apart(to, "out", from, "x");
    MUONRT_REQUIRE(!nonfinite || o.device().reaches(nonfinite), kInvalidArg, kOrthogonalize,
                   ": nonfinite is in memory that the device cannot access; pass memory of the "
                   "device, or NULL");
    const auto found = o.orthogonalize(to, from, nonfinite, stream);
    if (!found) return Status::kOk;
    api::set_last_error(
        cat(kOrthogonalize, ": x is not finite at index ", *found, "; out is unchanged").c_str());
    return Status::kSkipped;
  });
}

muonrt_status_t muonrt_symmetric_product(const muonrt_dltensor_t* c,
                                         muonrt_orthogonalizer_t* orthogonalizer, double alpha,
                                         const muonrt_dltensor_t* a, double beta,
                                         const muonrt_dltensor_t* d, void* stream) {
  return as_status([&] {
    Orthogonalizer& o = api::unwrap(orthogonalizer, kProduct);
    const auto read = [&](const muonrt_dltensor_t* tensor, const char* name) {
      return read_tensor(tensor, cat(kProduct, ": ", name), o.device(), orthogonalizer->device,
                         orthogonalizer->device_index);
    };
    const TensorView from = read(a, "a"), to = read(c, "c");
    const float by = read_factor(alpha, "alpha"), plus = read_factor(beta, "beta");
    std::optional<TensorView> added;
    if (plus != 0.0f) added = read(d, "d");
    std::vector<int64_t> square = from.shape;
    square.back() = from.rows();
    const auto require_form = [&](const TensorView& t, const char* name) {
      MUONRT_REQUIRE(t.shape == square && t.dtype == from.dtype, kInvalidArg, kProduct, ": ", name,
                     " has shape ", t.shape, " and dtype ", name_of(t.dtype), ", but a of shape ",
                     from.shape, " and dtype ", name_of(from.dtype), " needs ", square,
                     " and the same dtype; pass such a tensor");
    };
    require_form(to, "c");
    require_distinct(to, cat(kProduct, ": c"));
    require_same_or_apart(to, "c", from, "a");
    if (added) {
      require_form(*added, "d");
      require_same_or_apart(to, "c", *added, "d");
    }
    o.symmetric_product(to, by, from, plus, added ? &*added : nullptr, stream);
    return Status::kOk;
  });
}

}  // extern "C"
