#pragma once

#include <string>

#include "plan/machine/profile.hpp"

namespace muonrt::tool {

/// A measured profile, and a text that states the source of its numbers.
struct MachineFile : MachineProfile {
  std::string source;

  /// Returns the JSON text in the format of tools/machines. For numbers that were not measured, the
  /// text states a different source.
  std::string text() const;
};

/// Returns the size of this host's memory in bytes.
double host_memory_bytes();

}  // namespace muonrt::tool
