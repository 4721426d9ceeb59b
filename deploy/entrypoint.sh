#!/bin/sh
# Tells a process of a scaled service what nobody could write down for it: where it is reached, and which data are its
# own.
#
# All containers of the service `bookie` share two volumes. Each takes the first numbered directory that no other
# holds locked, the same number in both, and holds its lock until it ends. So a container that is made anew
# goes on with the data of one that is gone, and two never share any.
set -eu

case "${1:-}" in
broker)
    export QUIRE_ADVERTISE="${QUIRE_ADVERTISE:-pulsar://$(hostname):6650}"
    ;;
bookie)
    export QUIRE_ADVERTISE="${QUIRE_ADVERTISE:-$(hostname):3181}"
    if [ -z "${QUIRE_JOURNAL:-}" ]; then
        number=1
        mkdir -p "/journal/$number"
        exec 9>"/journal/$number/container.lock"
        until flock -n 9; do
            number=$((number + 1))
            mkdir -p "/journal/$number"
            exec 9>"/journal/$number/container.lock"
        done
        echo "data in /journal/$number and /entries/$number" >&2
        export QUIRE_JOURNAL="/journal/$number/journal" QUIRE_ENTRY_LOG="/entries/$number"
    fi
    ;;
esac
exec quire "$@"
