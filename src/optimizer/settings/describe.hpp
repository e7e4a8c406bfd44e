#pragma once

#include <optional>
#include <string>
#include <type_traits>

#include "base/hash.hpp"
#include "optimizer/agreement.hpp"
#include "optimizer/settings/fields.hpp"
#include "optimizer/settings/settings.hpp"

namespace muonrt {

/// Returns the value of a setting as text for messages, the agreement table and checkpoints. The
/// text of a Choice is its name.
template <class Row, class T>
std::string text_of(const Row& row, const T& value) {
  if constexpr (requires { row.rule.words; }) {
    for (const Word& word : row.rule.words)
      if (word.value == static_cast<int32_t>(value)) return word.text;
    return cat(static_cast<int32_t>(value));
  } else if constexpr (std::is_same_v<T, std::optional<DType>>) {
    return value ? name_of(*value) : "the optimizer's";
  } else if constexpr (std::is_same_v<T, DType>) {
    return name_of(value);
  } else if constexpr (std::is_same_v<T, bool>) {
    return value ? "1" : "0";
  } else {
    return cat(value);
  }
}
std::string text_of(const ComparedEntry& entry, const GroupSettings& group);
std::string text_of(const ComparedEntry& entry, const OptimizerSettings& settings);

/// Returns all settings that must be equal on all ranks when an optimizer is created.
/// @param device  Result of Device::describe().
AgreementTable make_agreement_table(const OptimizerSettings& settings, const std::string& device);

/// Both functions use the settings of a group that may change between steps: describe_scalars()
/// adds them to a table, and hash_scalars() adds them to a hash.
void describe_scalars(AgreementTable& table, const std::string& who, const GroupSettings& group);
void hash_scalars(Hash& hash, const GroupSettings& group);

}  // namespace muonrt
