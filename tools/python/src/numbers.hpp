/// Defines which Python objects the module accepts as numbers. Every file must include this header
/// before it binds functions, because the header replaces type casters of nanobind.
#ifndef MUONRT_PYTHON_NUMBERS_HPP
#define MUONRT_PYTHON_NUMBERS_HPP

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string_view>

namespace binding {

/// Returns whether the object is True, False or a NumPy bool, which nanobind would accept as
/// numbers.
inline bool is_bool(nanobind::handle object) {
  if (PyBool_Check(object.ptr()) != 0) return true;
  if (PyLong_CheckExact(object.ptr()) != 0 || PyFloat_CheckExact(object.ptr()) != 0) return false;
  const nanobind::str name = nanobind::type_name(object.type());
  std::string_view text = name.c_str();
  text.remove_prefix(text.rfind('.') + 1);  // "numpy.bool_"
  return text == "bool" || text == "bool_";
}

}  // namespace binding

namespace nanobind::detail {

/// Accepts whole numbers. Rejects bools, and also strings, which nanobind would parse.
template <class T>
struct WholeNumber {
  NB_TYPE_CASTER(T, const_name("int"))
  bool from_python(handle src, uint32_t flags, cleanup_list* cleanup) noexcept {
    if (binding::is_bool(src) || PyIndex_Check(src.ptr()) == 0) return false;
    type_caster<long long> any;
    const object number = steal(PyNumber_Index(src.ptr()));
    if (!number.is_valid()) PyErr_Clear();
    if (!number.is_valid() || !any.from_python(number, flags, cleanup)) return false;
    value = static_cast<T>(any.value);
    return static_cast<long long>(value) == any.value;
  }
  static handle from_cpp(T number, rv_policy, cleanup_list*) noexcept {
    return PyLong_FromLongLong(number);
  }
};
template <>
struct type_caster<int32_t> : WholeNumber<int32_t> {};
template <>
struct type_caster<int64_t> : WholeNumber<int64_t> {};

/// Accepts numbers. Rejects bools.
template <>
struct type_caster<double> {
  NB_TYPE_CASTER(double, const_name("float"))
  bool from_python(handle src, uint32_t, cleanup_list*) noexcept {
    if (binding::is_bool(src)) return false;
    value = PyFloat_AsDouble(src.ptr());
    if (value != -1.0 || PyErr_Occurred() == nullptr) return true;
    PyErr_Clear();
    return false;
  }
  static handle from_cpp(double number, rv_policy, cleanup_list*) noexcept {
    return PyFloat_FromDouble(number);
  }
};

}  // namespace nanobind::detail

#endif  // MUONRT_PYTHON_NUMBERS_HPP
