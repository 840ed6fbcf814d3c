package PVE::Storage;

# What the plug-in may expect of PVE::Storage.

use strict;
use warnings;

# The version of the storage API.
use constant APIVER => 15;

1;
